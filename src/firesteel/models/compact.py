"""A compact decoder for the common family: RMSNorm, RoPE, grouped queries, SwiGLU.

Llama, Mistral, Qwen2 and Qwen3 are one architecture with switches. This module is that architecture over flat rows:
readable torch, exportable by `torch.export`, and the plain twin of the kernels behind `native.py`. Weights are
transformers' own tensors, with q/k/v and gate/up laid side by side, so that each needs one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firesteel.models.rows import PackedRows

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary types whose frequencies do not depend on the sequence's length."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of a decoder. `windows[l]` is the sliding window of layer l in tokens, or None for full attention."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    eps: float
    rope_scale: float
    windows: tuple[int | None, ...]
    taps: tuple[int, ...]

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads


def supports(config: Any) -> str | None:
    """None when the compact decoder computes what transformers does for `config`; else a sentence saying why not."""
    family = getattr(config, "model_type", None)
    if family not in FAMILIES:
        return f"the compact decoder knows {', '.join(FAMILIES)}, not {family!r}"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"the compact decoder computes SwiGLU with silu, not {config.hidden_act!r}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in STATIC_ROPE:
        return f"rotary embeddings of type {rope['rope_type']!r} change with the sequence's length"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "only a part of each head is rotated"
    if getattr(config, "pretraining_tp", 1) not in (None, 1):
        return "pretraining_tp slices the matrices"
    return None


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in fp32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Linear(nn.Module):
    """x @ weight.T + bias, its weight shared and frozen. `quantize.Int8Linear` takes its place for int8."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)  # [out, in]
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Step:
    """What every layer of one forward shares: made once, passed down."""

    cos: Tensor  # [N, 1, D/2]
    sin: Tensor  # [N, 1, D/2]
    rows: PackedRows


class Layer(nn.Module):
    """Attention and SwiGLU, each behind a norm and added to the residual stream."""

    def __init__(self, shape: Shape, parts: dict[str, nn.Module | None]) -> None:
        super().__init__()
        self.shape = shape
        self.input_norm = parts["input_norm"]
        self.qkv = parts["qkv"]
        self.q_norm = parts["q_norm"]
        self.k_norm = parts["k_norm"]
        self.o = parts["o"]
        self.post_norm = parts["post_norm"]
        self.gate_up = parts["gate_up"]
        self.down = parts["down"]

    def forward(self, x: Tensor, step: Step, mask: Tensor, keys: Tensor, values: Tensor, index: int) -> Tensor:
        """x [N, hidden]; mask bool [B, 1, group * R, S]; keys, values [B, layers, kv_heads, capacity, D], written."""
        s = self.shape
        q, k, v = self.qkv(self.input_norm(x)).split(
            [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim], dim=-1
        )
        q = q.unflatten(-1, (s.heads, s.head_dim))
        k = k.unflatten(-1, (s.kv_heads, s.head_dim))
        v = v.unflatten(-1, (s.kv_heads, s.head_dim))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, step.cos, step.sin), rotate(k, step.cos, step.sin)
        slots, places = step.rows.slots, step.rows.places
        keys[slots, index, :, places] = k.to(keys.dtype)
        values[slots, index, :, places] = v.to(values.dtype)
        x = x + self.o(self.attend(q, keys[:, index], values[:, index], mask, step.rows))
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rows: PackedRows) -> Tensor:
        """Attention of rows q [N, heads, D] over keys, values [B, kv_heads, capacity, D] -> [N, heads * D].

        The query heads of a group become rows of one product with their key head: K and V are read once, unrepeated.
        """
        s = self.shape
        batch, most = rows.table.shape
        q = q[rows.table.flatten()].reshape(batch, most, s.kv_heads, s.group, s.head_dim)
        q = q.permute(0, 2, 3, 1, 4).reshape(batch, s.kv_heads, s.group * most, s.head_dim)
        length = mask.shape[-1]
        out = F.scaled_dot_product_attention(
            q, keys[:, :, :length].to(q.dtype), values[:, :, :length].to(q.dtype), attn_mask=mask
        )
        out = out.reshape(batch, s.kv_heads, s.group, most, s.head_dim).permute(0, 3, 1, 2, 4)
        return out.reshape(batch * most, s.heads * s.head_dim)[rows.flat]


class CompactDecoder(nn.Module):
    """The whole decoder over flat rows. See `forward`."""

    def __init__(
        self, shape: Shape, embed: Tensor, layers: Sequence[Layer], norm: RMSNorm, head: nn.Module, inv_freq: Tensor
    ) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Parameter(embed, requires_grad=False)  # [vocab, hidden]
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.head = head
        self.register_buffer("inv_freq", inv_freq.float(), persistent=False)  # [D/2]

    def forward(
        self,
        rows: PackedRows,
        keys: Tensor,  # [B, layers, kv_heads, capacity, D], written in place
        values: Tensor,  # [B, layers, kv_heads, capacity, D], written in place
        keep: Tensor | None = None,  # int64 [M]: rows whose logits are wanted
    ) -> tuple[Tensor, Tensor]:
        """Logits fp32 [N or M, vocab] and features [N, taps * hidden] of the rows.

        Needs 1 <= N and S <= capacity; the caller looks after both.
        """
        angles = rows.positions[:, None].float() * self.inv_freq  # [N, D/2]
        dtype = self.embed.dtype
        step = Step(
            (angles.cos() * self.shape.rope_scale).to(dtype)[:, None],
            (angles.sin() * self.shape.rope_scale).to(dtype)[:, None],
            rows,
        )
        x = F.embedding(rows.tokens, self.embed)
        taps = {}
        for index, (layer, window) in enumerate(zip(self.layers, self.shape.windows, strict=True)):
            x = layer(x, step, rows.folded_mask(self.shape.group, window), keys, values, index)
            if index in self.shape.taps:
                taps[index] = x
        features = torch.cat([taps[i] for i in self.shape.taps], dim=-1) if taps else x[:, :0]
        return self.head(self.norm(x if keep is None else x[keep])).float(), features


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [N, heads, D] by cos, sin [N, 1, D/2]: the halves of a head are the pairs' two parts."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
