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

from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.layers import Gemma4Layer, Layer, Norm


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


class Backbone(nn.Module):
    """fc, norms and layers; the embedding and the heads are the caller's."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layers) * config.target_hidden, config.hidden, bias=False)
        self.hidden_norm = Norm(config.hidden, config.eps)
        layer = Gemma4Layer if config.family == "gemma4" else Layer
        self.layers = nn.ModuleList(layer(config) for _ in range(config.layers))
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
