"""The target's K/V: slots that are acquired, reserved, committed and freed.

A round writes row r of a tree at place `context + r`; `commit` then moves the accepted rows to where a chain would have
put them. So what a slot holds is always the plain text's own K/V in the plain order, and the sums over it do not depend
on how the text was guessed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from firesteel.errors import OutOfSlots
from firesteel.models.rows import PLACES_BLOCK
from firesteel.tree import IntArray


class KVCache:
    """Keys and values `[slots, layers, kv_heads, capacity, head_dim]`, grown when a reservation asks for more.

    Args:
        layers, kv_heads, head_dim: shape of the target.
        dtype, device: of the stored tensors.
        slots: most requests that may hold K/V at once.
    """

    def __init__(
        self, *, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device | str, slots: int
    ) -> None:
        self._shape = (layers, kv_heads, head_dim)
        self._dtype, self._device = dtype, device
        self.slots = slots
        self._free = list(range(slots))
        self.keys = self._zeros(1, PLACES_BLOCK)
        self.values = self._zeros(1, PLACES_BLOCK)
        self.lengths = [0] * slots

    def _zeros(self, slots: int, capacity: int) -> Tensor:
        # Zeros and not empty: a masked place still enters a product, and garbage there could be NaN.
        layers, kv_heads, head_dim = self._shape
        return torch.zeros((slots, layers, kv_heads, capacity, head_dim), dtype=self._dtype, device=self._device)

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def acquire(self) -> int:
        """The lowest free slot, empty: low slots keep a batch's K/V contiguous.

        Raises:
            OutOfSlots: every slot is held.
        """
        if not self._free:
            raise OutOfSlots(f"all {self.slots} slots of the cache are held")
        slot = min(self._free)
        self._free.remove(slot)
        self.lengths[slot] = 0
        return slot

    def reserve(self, slots: Sequence[int], rows: Sequence[int]) -> None:
        """Make room for `rows[i]` more rows in `slots[i]`."""
        longest = max(self.lengths[slot] + more for slot, more in zip(slots, rows, strict=True))
        longest = -(-longest // PLACES_BLOCK) * PLACES_BLOCK  # attention reads whole blocks
        held, _, _, capacity, _ = self.keys.shape
        need_slots = max(slots) + 1
        if longest <= capacity and need_slots <= held:
            return
        if longest > capacity:
            capacity = max(longest, 2 * capacity)
        new_slots = held if need_slots <= held else min(self.slots, max(need_slots, 2 * held))
        for name in ("keys", "values"):
            old, new = getattr(self, name), self._zeros(new_slots, capacity)
            for slot in range(held):
                length = self.lengths[slot]
                new[slot, :, :, :length] = old[slot, :, :, :length]
            setattr(self, name, new)

    def commit(self, slots: Sequence[int], paths: Sequence[IntArray]) -> None:
        """Keep the rows of `paths[i]` in `slots[i]` and forget the other rows of the round."""
        for slot, path in zip(slots, paths, strict=True):
            start, kept = self.lengths[slot], len(path)
            if int(path[-1]) != kept - 1:  # a chain's rows lie where they belong already
                source = torch.as_tensor(path, device=self.keys.device) + start
                for tensor in (self.keys, self.values):
                    tensor[slot, :, :, start : start + kept] = tensor[slot].index_select(2, source)
            self.lengths[slot] = start + kept

    def free(self, slot: int) -> None:
        """Give a slot back; its contents are forgotten."""
        assert slot not in self._free, f"slot {slot} was freed twice"
        self.lengths[slot] = 0
        self._free.append(slot)
