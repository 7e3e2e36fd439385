"""Any decoder-only transformers model as a target: its code, our attention, our cache, taps on its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from firesteel.errors import UnsupportedModel
from firesteel.models import attention
from firesteel.models.cache import KVCache
from firesteel.models.rows import PackedRows, pack
from firesteel.tree import TokenTree

_ATTENTION_KINDS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True)
class TargetShape:
    """What the engine needs to know of a target.

    Fields:
        layers, kv_heads, head_dim, hidden_size: of the decoder.
        vocab_size: rows of the LM head, padding included.
        max_context: positions the model was made for.
    """

    layers: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_context: int

    @classmethod
    def of(cls, config: PretrainedConfig) -> TargetShape:
        """Read the shape from a transformers configuration."""
        config = config.get_text_config(decoder=True)
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            max_context=config.max_position_embeddings,
        )


class Target(Protocol):
    """What verifies: one forward over the rows of a whole batch."""

    shape: TargetShape
    dtype: torch.dtype
    device: torch.device
    taps: tuple[int, ...]

    def forward(self, rows: PackedRows, cache: KVCache, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Write the rows' K/V into the cache and score them.

        Args:
            keep: int64 [M] flat rows whose logits are wanted; None for all.

        Returns:
            logits float32 [N or M, vocab_size], features [N, len(taps) * hidden_size]: outputs of the tapped layers.
        """
        ...


def new_cache(target: Target, slots: int) -> KVCache:
    """An empty cache of the target's shape."""
    return KVCache(
        layers=target.shape.layers,
        kv_heads=target.shape.kv_heads,
        head_dim=target.shape.head_dim,
        dtype=target.dtype,
        device=target.device,
        slots=slots,
    )


def refuse_reason(config: PretrainedConfig) -> str | None:
    """Why a model of this configuration cannot be verified as a tree; None when nothing speaks against it."""
    text = config.get_text_config(decoder=True)
    name = config.model_type
    if config.is_encoder_decoder:
        return f"{name} is an encoder-decoder model; firesteel verifies decoder-only models"
    kinds = set(getattr(text, "layer_types", None) or [])
    other = sorted(kinds - _ATTENTION_KINDS)
    if other:
        return (
            f"{name} has layers of kind {', '.join(other)}: their state cannot be rolled back over a tree, because a "
            "rejected row would already have changed it"
        )
    return None


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
