"""Which widths are learned, which is measured next, and where a new one is worth measuring (AdaSpark §3.2).

    1   2   4       8               16                              32 ...      the ladder it starts from
                         10 11 12                                               widths that splits have added

A width is priced after three measurements, narrowest first. The widths between two neighbours are one class, priced at
its top. A class is split only where a width inside could win: that costs no less than the bottom and earns no more than
the widest inside does. The chooser's held width decides where to look first.

Where the paper is silent:
- A tie between the classes on both sides of the held width goes to the narrower one, which is cheaper to measure.
- After a split the chooser must hold a width for 8 rounds more, so that measuring never fills a request.
- The reach: when the narrowest width without a price is wider than any tree of the last 16 rounds, the widest of these
  trees is learned in its place. One short tree says nothing: text without repetition offers few n-grams. A reach within
  a quarter of a priced width is not worth its measurements.
- A batch of n requests needs n rows at least: widths below n are neither offered nor measured while it runs, and if the
  ladder has none that is wide enough, it goes on to the next power of two. Above the ladder it grows, doubling, by the
  same test as a split: nothing is measured there merely because many requests could fill it.

Not known here: what a width costs.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from firesteel.cost.base import Gaps
from firesteel.cost.config import CostConfig
from firesteel.errors import DamagedState
from firesteel.fit.stored import floats
from firesteel.tree import BoolArray, FloatArray, IntArray


class Ladder:
    """The table of widths."""

    def __init__(self, config: CostConfig) -> None:
        self._config = config
        self.reset()

    def reset(self) -> None:
        """Back to the ladder, nothing measured."""
        self.measured: dict[int, int] = dict.fromkeys(self._config.ladder, 0)  # width -> its measurements
        self._available: deque[int] = deque(maxlen=self._config.reach_rounds)
        self._requests = 1  # in the batch of this round
        self._held, self._rounds = 0, 0  # the width that the chooser holds, and for how many rounds

    def priced(self) -> IntArray:
        """`int64[n]` all widths measured often enough, rising."""
        enough = self._config.measurements
        return np.array(sorted(width for width, count in self.measured.items() if count >= enough), np.int64)

    def next(self, requests: int, available: int) -> int | None:
        """The width that this round should measure, if there is one that its trees can fill.

        Args:
            requests: fewest rows of the round's verify.
            available: most rows of it.
        """
        self._requests = requests
        self._available.append(available)
        if requests > max(self.measured):
            self.measured[1 << (requests - 1).bit_length()] = 0
        first, reach = self._pending(requests), max(self._available)
        if first is not None and first > reach >= requests and len(self._available) == self._available.maxlen:
            worth_it = reach > self._config.steep * max(self.priced(), default=0)
            if worth_it and reach not in self.measured:
                self.measured[reach] = 0
                first = reach
        return first if first is not None and first <= available else None

    def count(self, width: int) -> bool:
        """A verify had `width` rows: whether it is a width of the table, which has one more measurement then."""
        if width not in self.measured:
            return False
        self.measured[width] += 1
        return True

    def hold(self, width: int) -> bool:
        """The chooser chose `width`: whether a split is due, after so many rounds at one, and the table has room."""
        self._rounds = self._rounds + 1 if width == self._held else 1
        self._held = width
        return self._rounds % self._config.hold == 0 and len(self.measured) < self._config.most_widths

    def gaps(self, ms: FloatArray) -> Gaps:
        """Where a split is possible in this round.

        Args:
            ms: `float64[n]` prices of `priced()`.
        """
        widths, available = self.priced().tolist(), self._available[-1] if self._available else 0
        pending = [width for width, count in self.measured.items() if count < self._config.measurements]
        # Below the narrowest price nothing is known, so what is there may cost nothing.
        bottoms, least_ms = [self._requests - 1, *widths], [0.0, *ms.tolist()]
        tops, top_ms = [*widths, 0], [*ms.tolist(), np.inf]
        if widths and widths[-1] >= self._config.ladder[-1]:
            tops[-1] = min(2 * widths[-1], available) + 1
        most = [min(top - 1, available) for top in tops]
        found = [
            i
            for i, (bottom, top) in enumerate(zip(bottoms, tops, strict=True))
            if most[i] > max(bottom, self._requests - 1) and not any(bottom < width < top for width in pending)
        ]
        rows = np.array([bottoms, tops, most], np.int64)[:, found]
        costs = np.array([least_ms, top_ms])[:, found]
        return Gaps(self._held, rows[0], rows[1], rows[2], costs[0], costs[1])

    def split(self, gaps: Gaps, could_win: BoolArray) -> int | None:
        """Take up a width inside the nearest gap that could win; None if there is none."""
        candidates = np.flatnonzero(could_win)
        if not len(candidates):
            return None
        distance = np.maximum(gaps.bottoms - gaps.held, gaps.held - gaps.tops)
        i = int(candidates[np.argmin(distance[candidates])])
        bottom, top, most = int(gaps.bottoms[i]), int(gaps.tops[i]), int(gaps.most_rows[i])
        least = max(bottom + 1, self._requests)
        if np.isinf(gaps.top_ms[i]):
            width = most
        elif 0.0 < self._config.steep * gaps.least_ms[i] < gaps.top_ms[i]:
            width = least if bottom >= gaps.held else most
        else:
            width = min(max(least, (bottom + top) // 2), most)
        self.measured[width] = 0
        self._rounds = 0
        return width

    def state(self) -> dict[str, Any]:
        """The widths and their measurements, as JSON values."""
        return {"measured": [[width, count] for width, count in sorted(self.measured.items())]}

    def load(self, state: Any) -> None:
        """Take up what `state` returned.

        Raises:
            DamagedState: it is something else; nothing is taken up.
        """
        table = floats(state, "measured", (-1, 2), least=0.0)
        if (table != np.floor(table)).any() or (table[:, 0] < 1).any() or len({*table[:, 0].tolist()}) < len(table):
            raise DamagedState(f"stored state: 'measured' holds {table.tolist()}, which are no widths")
        self.reset()
        self.measured |= {int(width): int(count) for width, count in table.tolist()}

    def _pending(self, requests: int) -> int | None:
        enough = self._config.measurements
        return min((w for w, count in self.measured.items() if count < enough and w >= requests), default=None)
