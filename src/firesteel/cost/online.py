"""The cost of a verify, learned from the verifies that the engine runs anyway (AdaSpark §3.2).

    T(n_k, c) = law_k(c) * level_k * D_now / D_k                                                        Eq. 5

Four ideas, a file each: which widths there are (`ladder`), what each costs in context (`law`), how prices age
(`clock`), and here how they make the price that the chooser reads: rows are priced at the cheapest width that is at
least as wide, since that one could be run instead. A width that is dearer than a wider one is so never worth choosing.

Where the paper is silent:
- Only verifies of exactly a width's rows teach that width. Narrower ones of its class may be cheaper, and would lower
  the price of rows that they did not run.
- `verify_ms` is about rows and their mean context; see `cost.base`. What a batch costs beyond that, each request its
  overhead, is in the level.
- The clock reads D_now before it is compared with D_k, so the width just measured has a factor of 1.

Not known here: what rows earn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from firesteel.cost.base import Gaps, Offer, RoundCost
from firesteel.cost.clock import Clock
from firesteel.cost.config import CostConfig
from firesteel.cost.ladder import Ladder
from firesteel.cost.law import WidthLaw, refit_laws
from firesteel.errors import DamagedState
from firesteel.fit.quantile import TERMS, basis
from firesteel.fit.stored import field
from firesteel.tree import BoolArray, FloatArray, IntArray


class OnlineCost:
    """A `CostModel` that starts with nothing and needs no profile."""

    _cached: _Table | None  # the laws of all priced widths as arrays, until one of them changes

    def __init__(self, config: CostConfig | None = None) -> None:
        self.config = config or CostConfig()
        self._start(Ladder(self.config), Clock(self.config.clock_window), {})

    def offer(self, requests: int, available: int) -> Offer:
        """See `CostModel.offer`."""
        measure = self.ladder.next(requests, available)
        widths = self._table().widths
        seen = None if measure is None else self.laws.get(measure)
        return Offer(measure, widths[widths >= requests], None if seen is None else seen.lowest_ms)

    def verify_ms(self, rows: ArrayLike, context: ArrayLike) -> FloatArray:
        """See `CostModel.verify_ms`."""
        rows, table = np.asarray(rows, np.int64), self._table()
        own = np.atleast_2d(table.ms(basis(context, self.config.context_unit), self.clock.now))  # [1 or n, K]
        cheapest = np.full((len(own), len(table.widths) + 1), np.inf)  # of rows that nothing priced is wide enough for
        np.minimum.accumulate(own[:, ::-1], axis=1, out=cheapest[:, -2::-1])
        at = np.searchsorted(table.widths, rows)
        prices: FloatArray = cheapest[0, at] if len(own) == 1 else cheapest[np.arange(len(rows)), at]
        return prices

    def draft_ms(self, rows: int) -> float:
        """See `CostModel.draft_ms`."""
        return self.clock.ms(rows)

    def held(self, width: int, context: float) -> Gaps:
        """See `CostModel.held`."""
        if not self.ladder.hold(width):
            return Gaps.none(width)
        return self.ladder.gaps(self.verify_ms(self._table().widths, context))

    def split(self, gaps: Gaps, could_win: BoolArray) -> int | None:
        """See `CostModel.split`."""
        return self.ladder.split(gaps, could_win)

    def learn(self, took: RoundCost) -> None:
        """See `CostModel.learn`. Rounds that took no time, or were the first of a request, teach nothing."""
        if took.first or not took.verify_ms > 0.0:
            return
        if took.draft_rows > 0 and took.fixed_ms > 0.0:
            self.clock.tick(took.draft_rows, took.fixed_ms)
        if self.ladder.count(took.rows):
            if (law := self.laws.get(took.rows)) is None:
                law = self.laws[took.rows] = WidthLaw(self.config)
            law.learn(took.context, took.verify_ms, self.clock.now)
            if self._cached is not None and not self._cached.renew(took.rows, law):
                self._cached = None

    def refit(self) -> None:
        """See `CostModel.refit`: the laws with new samples are fitted to their banks."""
        refit_laws(list(self.laws.values()), self.config)
        self._cached = None

    def state(self) -> dict[str, Any]:
        """See `CostModel.state`."""
        laws = {str(width): law.state() for width, law in sorted(self.laws.items())}
        return {"ladder": self.ladder.state(), "clock": self.clock.state(), "laws": laws}

    def load(self, state: Any) -> None:
        """See `CostModel.load`."""
        self._start(Ladder(self.config), Clock(self.config.clock_window), {})  # empty, unless all of it is sound
        ladder, clock = Ladder(self.config), Clock(self.config.clock_window)
        ladder.load(field(state, "ladder"))
        clock.load(field(state, "clock"))
        laws = field(state, "laws")
        names = {str(width): width for width, count in ladder.measured.items() if count}
        if not isinstance(laws, dict) or laws.keys() != names.keys():
            raise DamagedState(f"stored state: the laws of widths {[*names]} should be there, and no other")
        self._start(ladder, clock, {width: WidthLaw.of(laws[name], self.config) for name, width in names.items()})

    def _start(self, ladder: Ladder, clock: Clock, laws: dict[int, WidthLaw]) -> None:
        self.ladder, self.clock = ladder, clock
        self.laws = laws  # by width
        self._cached = None

    def _table(self) -> _Table:
        if self._cached is None:
            widths = self.ladder.priced()
            self._cached = _Table.of(widths, [self.laws[width] for width in widths.tolist()])
        return self._cached


@dataclass(frozen=True)
class _Table:
    """The laws of the priced widths, as arrays of length K.

    Fields:
        widths: `int64`, rising.
        weights: `float64[K, 5]`, in units of `scale_ms`.
        least, most: between what a law may say, in the same units.
        scale_ms: milliseconds of a unit, the level in it.
        slowness: of the clock when a width was last measured; not a number where there was none.
    """

    widths: IntArray
    weights: FloatArray
    least: FloatArray
    most: FloatArray
    scale_ms: FloatArray
    slowness: FloatArray

    @classmethod
    def of(cls, widths: IntArray, laws: list[WidthLaw]) -> _Table:
        """The table of these laws, one per width."""
        count = len(widths)
        table = cls(widths, np.zeros((count, TERMS)), *np.zeros((4, count)))
        for width, law in zip(widths.tolist(), laws, strict=True):
            table.renew(width, law)
        return table

    def renew(self, width: int, law: WidthLaw) -> bool:
        """Put in what `law` says now; False if its width is not here."""
        i = int(self.widths.searchsorted(width))
        if i == len(self.widths) or self.widths[i] != width:
            return False
        least, most = law.clamp_ms
        self.weights[i] = law.price_weights
        self.least[i], self.most[i] = least / law.scale, most / law.scale
        self.scale_ms[i] = law.scale * law.level
        self.slowness[i] = np.nan if law.slowness is None else law.slowness
        return True

    def ms(self, phi: FloatArray, now: float | None) -> FloatArray:
        """`float64[..., K]` the price of every width at contexts of basis `phi` [..., 5] when the clock reads `now`."""
        law = np.minimum(np.maximum(phi @ self.weights.T, self.least), self.most) * self.scale_ms
        return law if now is None else law * np.fmax(now / self.slowness, np.isnan(self.slowness))
