"""What the kernels do for a drafter besides its backbone: the K/V of its context, and the walk along its blocks.

The structs below mirror those of `kernels/context.h` and `kernels/walk.h`.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, byref, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from firesteel.errors import InvalidParameter
from firesteel.models.compact import Linear
from firesteel.models.native import ERRORS, KINDS, TILE, Matrix, NativeDecoder, PackedWeights, padded
from firesteel.tree import IntArray


class Fusion(Structure):
    _fields_ = (("fc", Matrix), ("norm", c_void_p))


class ContextCall(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("features", "positions", "slots", "places", "keys", "values")),
        *((name, c_int64) for name in ("n", "slots_count", "capacity")),
        ("cache_kind", c_int32),
        ("threads", c_int32),
    )


class Markov(Structure):
    _fields_ = (("w2", Matrix), ("w1", c_void_p), ("kept", c_void_p), ("rank", c_int64), ("vocab", c_int64))


class WalkCall(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("base", "anchors", "starts", "lengths", "heats")),
        *((name, c_void_p) for name in ("logits", "picks", "before", "top", "probs")),
        *((name, c_int64) for name in ("n", "count")),
        ("threads", c_int32),
    )


class NativeContext:
    """A drafter's context by the kernels: K/V of tokens from their features, with the weights of its native layers.

    Args:
        decoder: the drafter's layers.
        fc: [hidden, feature columns], fp32 or bf16: its columns differ too much in size for int8.
        norm: [hidden], of what `fc` gives.
    """

    def __init__(self, decoder: NativeDecoder, fc: Linear, norm: Tensor) -> None:
        self._decoder, self._weights = decoder, PackedWeights(decoder.library)
        self._fusion = Fusion(self._weights.matrix(fc), self._weights.vector(norm))

    def __call__(
        self,
        features: Tensor,  # [n, feature columns]
        positions: Tensor,  # int64 [n]
        slots: Tensor,  # int64 [n]
        places: Tensor,  # int64 [n]
        keys: Tensor,  # fp32 or bf16 [B, layers, kv_heads, capacity, D], written in place
        values: Tensor,  # the same
    ) -> None:
        """Write the K/V of n tokens. Raises InvalidParameter for an index out of its range."""
        features = padded(features.float(), TILE).contiguous()
        call = ContextCall(
            *(x.data_ptr() for x in (features, positions, slots, places, keys, values)),
            features.shape[0],
            keys.shape[0],
            keys.shape[3],
            KINDS[keys.dtype],
            self._decoder.threads,
        )
        decoder = self._decoder
        if error := decoder.library.firesteel_context(byref(decoder.model), byref(self._fusion), byref(call)):
            raise InvalidParameter(f"a {ERRORS[error]} of the context is out of its range")


class NativeWalk:
    """A drafter's walk along its blocks by the kernels, with a vanilla Markov head.

    Args:
        decoder: the drafter's layers, for the library and the threads.
        w1: [target tokens, r]; w2: [draft_vocab, r], fp32 or bf16.
        kept: int64 [draft_vocab] target id of each draft id; None for the identity.
    """

    def __init__(self, decoder: NativeDecoder, w1: Tensor, w2: Linear, kept: Tensor | None) -> None:
        self._decoder, self._weights, self._tokens = decoder, PackedWeights(decoder.library), w1.shape[0]
        rows = padded(w1.detach().float(), TILE).contiguous()
        self._markov = Markov(
            self._weights.matrix(w2),
            self._weights.pointer(rows),
            None if kept is None else self._weights.pointer(kept.contiguous()),
            rows.shape[1],
            w2.weight.shape[0],
        )

    def __call__(
        self,
        base: Tensor,  # fp32 [N, draft_vocab]
        anchors: Sequence[int],  # [n]
        starts: IntArray,  # int64 [n]
        lengths: IntArray,  # int64 [n]
        heats: Sequence[float],  # [n]
        count: int,
    ) -> tuple[Tensor, Tensor, Tensor, None, Tensor, Tensor]:
        """The fields of `drafters.walk.Walk`. Raises InvalidParameter for a token or a row out of its range."""
        if not all(0 <= anchor < self._tokens for anchor in anchors):
            raise InvalidParameter(f"an anchor is out of the range of {self._tokens} tokens")
        if int(starts.min()) < 0 or int((starts + lengths).max()) > len(base):
            raise InvalidParameter(f"a block ends behind the {len(base)} rows")
        if base.shape[1] != self._markov.vocab:
            raise InvalidParameter(f"base logits of {base.shape[1]} tokens for a head of {self._markov.vocab}")
        given = (
            base.contiguous(),
            torch.tensor(anchors),
            torch.as_tensor(starts).contiguous(),
            torch.as_tensor(lengths).contiguous(),
            torch.tensor(heats, dtype=torch.float32),
        )
        picks = torch.zeros(len(base), dtype=torch.int64)
        top, probs = picks.new_zeros(len(base), count), base.new_zeros(len(base), count)
        made = torch.zeros_like(given[0]), picks, torch.zeros_like(picks), top, probs
        pointers = (x.data_ptr() for x in (*given, *made))
        call = WalkCall(*pointers, len(anchors), count, self._decoder.threads)
        self._decoder.library.firesteel_walk(byref(self._markov), byref(call))
        return picks, made[2], made[0], None, top, probs
