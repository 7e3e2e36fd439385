"""The compact decoder as a target: eager, or run by the compiled kernels, with the same results within rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from firesteel.models.cache import KVCache
from firesteel.models.compact import CompactDecoder
from firesteel.models.native import NativeDecoder
from firesteel.models.rows import PackedRows
from firesteel.models.target import TargetShape


class CompactTarget:
    """A `Target` over a compact decoder or its native twin, which are called alike.

    Args:
        decoder: what computes the rows.
        shape: of the target.
        cache_dtype: of the K/V cache.
    """

    def __init__(
        self,
        decoder: CompactDecoder | NativeDecoder,
        shape: TargetShape,
        cache_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._decoder = decoder
        self.shape, self.dtype, self.device = shape, cache_dtype, device
        self.taps = tuple(decoder.shape.taps)

    @torch.inference_mode()
    def forward(self, rows: PackedRows, cache: KVCache, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `Target.forward`."""
        return self._decoder(rows, cache.keys[rows.slot_range], cache.values[rows.slot_range], keep)
