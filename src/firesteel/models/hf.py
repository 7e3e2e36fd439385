"""Any decoder-only transformers model as a target: its code, our attention, our cache, taps on its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from firesteel.errors import UnsupportedModel
from firesteel.models import attention
from firesteel.models.cache import KVCache
from firesteel.models.rows import PackedRows, pack
from firesteel.models.target import TargetShape, new_cache, refuse_reason
from firesteel.tree import TokenTree


class TransformersTarget:
    """A transformers model, eager: the plain twin of every faster path.

    Args:
        model: any decoder-only model whose attention goes through transformers' attention interface.
        taps: layers whose outputs are returned as features; 0 <= tap <= layers - 2.

    Raises:
        UnsupportedModel: a recurrent, convolutional or otherwise stateful model, or one with attention of its own.
    """

    def __init__(self, model: PreTrainedModel, taps: Sequence[int] = ()) -> None:
        reason = refuse_reason(model.config)
        if reason is None and getattr(model, "_is_stateful", False):
            reason = (
                f"{model.config.model_type} keeps a recurrent state, which cannot be rolled back over a tree: a "
                "rejected row would already have changed it"
            )
        if reason:
            raise UnsupportedModel(reason)
        self.model = model.eval()
        self.shape = TargetShape.of(model.config)
        self.dtype, self.device = model.dtype, model.device
        if not all(0 <= tap <= self.shape.layers - 2 for tap in taps):
            raise UnsupportedModel(
                f"taps {tuple(taps)} must lie in 0..{self.shape.layers - 2}, the layers below the last"
            )
        self.taps = tuple(taps)
        try:
            model.set_attn_implementation(attention.NAME)
        except ValueError as error:
            raise UnsupportedModel(f"{model.config.model_type} has attention code of its own: {error}") from error
        self._check_attention()

    def _check_attention(self) -> None:
        """One row through the model: every layer must have written the cache, or its attention is not ours."""
        cache = new_cache(self, slots=1)
        cache.keys[:, :, :, 0] = torch.nan
        self.forward(pack([TokenTree.root(0)], [cache.acquire()], [0], self.device), cache)
        if bool(cache.keys[0, :, :, 0].isnan().any()):
            raise UnsupportedModel(
                f"{self.model.config.model_type} has layers that bypass transformers' attention interface, so a tree's "
                "mask cannot reach them"
            )

    @torch.inference_mode()
    def forward(self, rows: PackedRows, cache: KVCache, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `Target.forward`."""
        wanted: dict[str, Any] = {} if keep is None else {"logits_to_keep": keep}
        out = self.model(
            input_ids=rows.tokens[None],
            position_ids=rows.positions[None],
            use_cache=False,
            output_hidden_states=bool(self.taps),
            packed_rows=rows,
            kv_cache=cache,
            **wanted,
        )
        features = [out.hidden_states[tap + 1][0] for tap in self.taps]
        empty = out.logits.new_empty(rows.tokens.shape[0], 0)
        return out.logits[0].float(), torch.cat(features, -1) if features else empty
