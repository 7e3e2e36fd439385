"""The decoder layers of block drafters: Qwen3's, which nearly all of them have, and Gemma 4's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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


class Attention(nn.Module):
    """Grouped-query attention of block rows over their context and their own block, with q/k norms."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5
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
        """Output `[C, A, B, H]`. Rows that nobody reads may see nothing; they come out as finite numbers."""
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.head_dim))), cos, sin)
        own_keys, own_values = self.keys_values(x, cos, sin)  # [C, A, B, kv_heads, D]
        q = q.unflatten(-2, (self.kv_heads, -1))  # [C, A, B, kv_heads, group, D]
        # One softmax over both parts, so that no anchor needs a copy of the context.
        far = torch.einsum("cabkgd,ctkd->cabkgt", q, keys)
        near = torch.einsum("cabkgd,caekd->cabkge", q, own_keys)
        scores = torch.cat([far, near], dim=-1).float() * self.scale
        scores = scores.masked_fill(~mask[:, :, :, None, None], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).to(x.dtype)
        places = keys.shape[1]
        out = torch.einsum("cabkgt,ctkd->cabkgd", weights[..., :places], values)
        out = out + torch.einsum("cabkge,caekd->cabkgd", weights[..., places:], own_values)
        return self.o_proj(out.flatten(-3))


class MLP(nn.Module):
    """down(activation(gate x) * up x); SwiGLU unless told otherwise."""

    def __init__(self, config: DrafterConfig, activation: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.activation = activation
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., H] -> [..., H]`."""
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


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


class Gemma4Attention(Attention):
    """The norms of q and k do the scaling; v has a norm without weights, and may be the keys' projection."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.scale, self.eps = 1.0, config.eps
        if config.values_from_keys:
            self.v_proj = None

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See `Attention.keys_values`."""
        split = (self.kv_heads, self.head_dim)
        k = self.k_proj(x).unflatten(-1, split)
        v = k if self.v_proj is None else self.v_proj(x).unflatten(-1, split)
        normed = F.rms_norm(v.float(), (self.head_dim,), None, self.eps).to(v.dtype)
        return rotate(self.k_norm(k), cos, sin), normed


class Gemma4Layer(nn.Module):
    """Norms on both sides of attention and MLP, and one factor on the whole stream (DeepSpec's Gemma4DSparkModel)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden, config.eps)
        self.self_attn = Gemma4Attention(config)
        self.post_attention_layernorm = Norm(config.hidden, config.eps)
        self.pre_feedforward_layernorm = Norm(config.hidden, config.eps)
        self.mlp = MLP(config, partial(F.gelu, approximate="tanh"))
        self.post_feedforward_layernorm = Norm(config.hidden, config.eps)
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Residual stream `[C, A, B, H]`; see `Attention.forward`."""
        attended = self.self_attn(self.input_layernorm(x), cos, sin, keys, values, mask)
        x = x + self.post_attention_layernorm(attended)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar
