"""The backbone that all block drafters share: a few decoder layers over a block, looking back at target features.

    features [T, n * H_target] ── fc ── norm ──> c [T, H] ──> each layer's K/V of the context, nothing else
    anchor, mask, mask, ...    ── embed ──> block [B, H] ── layers: see the context and their own block ──> out [B, H]

Context K/V are a function of a token's features and position alone: they are computed once and kept. A block's own K/V
are dropped after its pass. One code serves training (many anchors in a sequence) and serving (one anchor per request):
tensors are [C, A, B, ...] for C contexts, A anchors in each and B rows per block. Parameter names are the checkpoints'.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firesteel.models.compact import rotate
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.convolution import BlockConvolution


class Norm(nn.Module):
    """x / rms(x) * weight over the last dimension, in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x [..., width]."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


@dataclass(frozen=True)
class Context:
    """The K/V of C contexts, padded to T places.

    Fields:
        keys, values: per layer `[C, T, kv_heads, D]`.
        positions: `int64[C, T]` the position that each place holds.
        seen: `bool[C, A, T]` which places the blocks at each anchor see: those before the anchor.
    """

    keys: list[Tensor]
    values: list[Tensor]
    positions: Tensor
    seen: Tensor


class Attention(nn.Module):
    """Grouped-query attention of block rows over their context and their own block, with q/k norms."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=bias)
        self.q_norm = Norm(config.head_dim, config.eps)
        self.k_norm = Norm(config.head_dim, config.eps)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """K and V `[..., kv_heads, D]` of rows x `[..., H]`; cos and sin `[..., 1, D/2]`."""
        split = (self.kv_heads, self.head_dim)
        k = self.k_norm(self.k_proj(x).unflatten(-1, split))
        return rotate(k, cos, sin), self.v_proj(x).unflatten(-1, split)

    def forward(
        self,
        x: Tensor,  # [C, A, B, H]
        cos: Tensor,  # [C, A, B, 1, D/2]
        sin: Tensor,  # the same
        keys: Tensor,  # [C, T, kv_heads, D]  of the context
        values: Tensor,  # the same
        mask: Tensor,  # bool [C, A, B, T + B]
    ) -> Tensor:
        """Output `[C, A, B, H]`. Rows that nobody reads may see nothing; they come out as zeros."""
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.head_dim))), cos, sin)
        own_keys, own_values = self.keys_values(x, cos, sin)  # [C, A, B, kv_heads, D]
        q = q.unflatten(-2, (self.kv_heads, -1))  # [C, A, B, kv_heads, group, D]
        # One softmax over both parts, so that no anchor needs a copy of the context.
        far = torch.einsum("cabkgd,ctkd->cabkgt", q, keys)
        near = torch.einsum("cabkgd,caekd->cabkge", q, own_keys)
        scores = torch.cat([far, near], dim=-1).float() * self.head_dim**-0.5
        scores = scores.masked_fill(~mask[:, :, :, None, None], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).to(x.dtype)
        places = keys.shape[1]
        out = torch.einsum("cabkgt,ctkd->cabkgd", weights[..., :places], values)
        out = out + torch.einsum("cabkge,caekd->cabkgd", weights[..., places:], own_values)
        return self.o_proj(out.flatten(-3))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., H] -> [..., H]`."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and SwiGLU behind their norms; DFlash 2 wraps each in a convolution along the block."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden, config.eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden, config.eps)
        self.mlp = MLP(config)
        convolved = config.conv_kernel > 0
        self.attention_conv = BlockConvolution(config) if convolved else None
        self.mlp_conv = BlockConvolution(config) if convolved else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Residual stream `[C, A, B, H]`; see `Attention.forward`."""

        def attend(y: Tensor) -> Tensor:
            return self.self_attn(y, cos, sin, keys, values, mask)

        normed = self.input_layernorm(x)
        x = x + (attend(normed) if self.attention_conv is None else self.attention_conv.around(normed, attend))
        normed = self.post_attention_layernorm(x)
        return x + (self.mlp(normed) if self.mlp_conv is None else self.mlp_conv.around(normed, self.mlp))


class Backbone(nn.Module):
    """fc, norms and layers; the embedding and the heads are the caller's."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layers) * config.target_hidden, config.hidden, bias=False)
        self.hidden_norm = Norm(config.hidden, config.eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = Norm(config.hidden, config.eps)
        with torch.device("cpu"):  # computed even where the weights are only shapes
            inv_freq, self.rope_scale = rope_frequencies(config)
        self.register_buffer("inv_freq", inv_freq, persistent=False)  # [D/2]

    def rope(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin `[..., 1, D/2]` of positions `[...]`."""
        angles = positions[..., None, None].float() * self.inv_freq
        return (angles.cos() * self.rope_scale).to(dtype), (angles.sin() * self.rope_scale).to(dtype)

    def context(self, features: Tensor, positions: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """K and V, per layer `[..., kv_heads, D]`, of tokens with features `[..., n * H_target]` at positions."""
        c = self.hidden_norm(self.fc(features))
        cos, sin = self.rope(positions, c.dtype)
        pairs = [layer.self_attn.keys_values(c, cos, sin) for layer in self.layers]
        return [k for k, _ in pairs], [v for _, v in pairs]

    def block(
        self,
        embedded: Tensor,  # [C, A, B, H]
        anchors: Tensor,  # int64 [C, A]  positions
        context: Context,
        lengths: Tensor | None = None,  # int64 [C, A]  rows in use; None for all
    ) -> Tensor:
        """Final-normed states `[C, A, B, H]` of blocks at their anchors."""
        rows = torch.arange(embedded.shape[2], device=embedded.device)
        positions = anchors[..., None] + rows  # [C, A, B]
        cos, sin = self.rope(positions, embedded.dtype)
        masks = self._masks(rows, positions, context, lengths)
        x = embedded
        for index, layer in enumerate(self.layers):
            mask = masks[self.config.causal[index], self.config.windows[index]]
            x = layer(x, cos, sin, context.keys[index], context.values[index], mask)
        return self.norm(x)

    def _masks(
        self, rows: Tensor, positions: Tensor, context: Context, lengths: Tensor | None
    ) -> dict[tuple[bool, int | None], Tensor]:
        """`bool[C, A, B, T + B]` for each (causal, window) that a layer has."""
        masks = {}
        count = len(rows)
        for causal, window in set(zip(self.config.causal, self.config.windows, strict=True)):
            far = context.seen[:, :, None].expand(-1, -1, count, -1)
            near = rows[:, None] >= rows if causal else torch.ones(count, count, dtype=torch.bool, device=rows.device)
            if window is not None:
                far = far & (positions[..., None] - context.positions[:, None, None] < window)
                near = near & ((rows[:, None] - rows).abs() < window)
            near = near.expand(*positions.shape[:2], -1, -1)
            if lengths is not None:
                near = near & (rows < lengths[..., None])[:, :, None]
            masks[causal, window] = torch.cat([far, near], dim=-1)
        return masks


def rope_frequencies(config: DrafterConfig) -> tuple[Tensor, float]:
    """Inverse frequencies `[D/2]` and the factor on cos and sin, as transformers computes them for the rope type."""
    rope = dict(config.rope)
    kind = rope.get("rope_type", "default")
    if kind == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        return 1.0 / rope["rope_theta"] ** exponents, 1.0
    from transformers import PretrainedConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stand_in = PretrainedConfig(
        hidden_size=config.hidden,
        num_attention_heads=config.heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_context,
        rope_parameters=rope,
    )
    inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](stand_in, torch.device("cpu"))
    return inv_freq.float(), float(scale)
