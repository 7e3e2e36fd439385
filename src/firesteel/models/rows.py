"""The rows of one forward: every row of every tree, or of every drafter's block, of a batch, flat.

Slots first_slot .. first_slot+B-1 of the cache take part, so that K/V is a contiguous view and nothing is gathered.
A slot of that range which is not in the batch has no rows; its padding sees place 0 and is never read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from firesteel.tree import BoolArray, IntArray

# Attention sums over whole blocks of this many places, whatever the context: the order of its sums, and with it the
# last bit of every row, then does not depend on how many rows a verify has.
PLACES_BLOCK = 64


@dataclass(frozen=True, eq=False)
class PackedRows:
    """One target forward; tensors on the target's device."""

    tokens: Tensor  # int64 [N]
    positions: Tensor  # int64 [N]  rotary position: context + depth
    slots: Tensor  # int64 [N]  the row's slot, relative to first_slot
    places: Tensor  # int64 [N]  where in its slot the row's K/V is written
    table: Tensor  # int64 [B, R]  flat index of the r-th row of slot b (padding: 0)
    flat: Tensor  # int64 [N]  b * R + r: the inverse of table
    mask: Tensor  # bool [B, R, S]  may row r of slot b see place s
    key_positions: Tensor  # int64 [B, S]  the position that each place holds
    first_slot: int
    _masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict, repr=False)

    @property
    def slot_range(self) -> slice:
        """The slots of the cache that take part."""
        return slice(self.first_slot, self.first_slot + self.table.shape[0])

    def folded_mask(self, groups: int, window: int | None) -> Tensor:
        """`bool[B, 1, groups * R, S]`: the mask for query heads folded into rows, narrowed to a sliding window.

        Computed once per forward and window; `window` counts the row itself, as transformers does.
        """
        key = (groups, window)
        if key not in self._masks:
            mask = self.mask
            if window is not None:
                row_positions = self.positions[self.table]  # [B, R]
                mask = mask & (row_positions[:, :, None] - self.key_positions[:, None, :] < window)
                # Padding rows are read by nobody, but a row that sees nothing would put NaN into a softmax.
                mask = mask | ~mask.any(-1, keepdim=True)
            batch, rows, places = mask.shape
            self._masks[key] = (
                mask[:, None, None].expand(batch, 1, groups, rows, places).reshape(batch, 1, groups * rows, places)
            )
        return self._masks[key]


class RowSet(Protocol):
    """One request's rows: a `TokenTree`, or a `Block`."""

    @property
    def width(self) -> int:
        """Rows."""
        ...

    @property
    def tokens(self) -> IntArray:
        """`int64[R]`."""
        ...

    @property
    def depths(self) -> IntArray:
        """`int64[R]` distance of each row's position from the context's end."""
        ...

    @property
    def ancestor_mask(self) -> BoolArray:
        """`bool[R, R]` which rows of the set each row sees."""
        ...


@dataclass(frozen=True)
class Block:
    """A drafter's block: the anchor, then masks; all rows see each other, or only those before them."""

    anchor: int
    mask_token: int
    width: int
    causal: bool

    @cached_property
    def tokens(self) -> IntArray:
        """The anchor and the masks."""
        tokens = np.full(self.width, self.mask_token, np.int64)
        tokens[0] = self.anchor
        return tokens

    @property
    def depths(self) -> IntArray:
        """One position a row."""
        return np.arange(self.width)

    @property
    def ancestor_mask(self) -> BoolArray:
        """Lower triangle, or all."""
        whole = np.ones((self.width, self.width), np.bool_)
        return np.tril(whole) if self.causal else whole


def pack(
    trees: Sequence[RowSet], slots: Sequence[int], contexts: Sequence[int], device: torch.device | str = "cpu"
) -> PackedRows:
    """Lay the rows of `trees` out flat, in the order given.

    Args:
        trees: one per request.
        slots: the cache slot of each request, all different.
        contexts: tokens in the cache of each request; row r of a tree is written at place context + r.
    """
    first_slot = min(slots)
    batch = max(slots) - first_slot + 1
    widths = [tree.width for tree in trees]
    rows = max(widths)
    longest = max(context + width for context, width in zip(contexts, widths, strict=True))
    places = -(-longest // PLACES_BLOCK) * PLACES_BLOCK

    table = np.zeros((batch, rows), np.int64)
    mask = np.zeros((batch, rows, places), np.bool_)
    mask[:, :, 0] = True  # for padding; a real row overwrites it below
    key_positions = np.tile(np.arange(places, dtype=np.int64), (batch, 1))
    start = 0
    for tree, slot, context, width in zip(trees, slots, contexts, widths, strict=True):
        b = slot - first_slot
        table[b, :width] = np.arange(start, start + width)
        mask[b, :width, :context] = True
        mask[b, :width, context : context + width] = tree.ancestor_mask
        key_positions[b, context : context + width] = context + tree.depths
        start += width

    per_row = np.repeat(np.asarray(contexts), widths)
    within = np.concatenate([np.arange(width) for width in widths])
    relative = np.repeat(np.asarray(slots) - first_slot, widths)

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return PackedRows(
        tokens=tensor(np.concatenate([tree.tokens for tree in trees])),
        positions=tensor(per_row + np.concatenate([tree.depths for tree in trees])),
        slots=tensor(relative),
        places=tensor(per_row + within),
        table=tensor(table),
        flat=tensor(relative * rows + within),
        mask=tensor(mask),
        key_positions=tensor(key_positions),
        first_slot=first_slot,
    )
