"""What a target is to the engine: a shape, and one forward over packed rows. Nothing here imports transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from firesteel.models.cache import KVCache
from firesteel.models.rows import PackedRows

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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
