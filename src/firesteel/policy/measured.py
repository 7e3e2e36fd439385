"""What rounds cost and what candidates are worth, by measuring and counting alone.

These are the two models behind `auto`. Neither knows of the other, of policies, or of engines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from math import exp, log
from statistics import median_low
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from firesteel.errors import DamagedState
from firesteel.fit.stored import floats, number
from firesteel.tree import FloatArray

LADDER: Final = tuple(sorted({1, 3} | {2**k for k in range(1, 13)} | {3 * 2**k for k in range(1, 12)}))
"""Tops of the row classes: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... Widths between two tops share the upper one's price."""


def class_of(rows: int) -> int:
    """Position in `LADDER` of the narrowest class that holds this many rows; the last one holds all wider verifies."""
    return min(bisect_left(LADDER, rows), len(LADDER) - 1)


@dataclass
class _RowClass:
    """What was measured of one class, at level 1."""

    first: list[float] = field(default_factory=list)  # its first measurements
    own_ms: float = 0.0
    measured_at: int = 0  # the round of the last measurement,
    level_then: float = 1.0  # and the level in it


class RoundCosts:
    """Milliseconds of a round by its total rows.

    A price is a class's own cost times a level that all classes share. The level is the lower median of the last 8
    rounds' time over own cost: when the machine slows it moves every class within five rounds, the idle ones too, so
    that load does not make a class look cheap merely because it was last run in quieter times.

    An own cost is the lower median of a class's first 4 measurements, and then moves slowly, faster after a pause, and
    upwards in clipped steps: time can be lost to other causes but not won, so an outlier moves it little.

    A class is believed after two measurements, or after one that is hardly dearer than was guessed. Until then, it is
    never priced above the guess: between believed classes on a straight line, beyond the widest at the measured slope
    or `slope` per row, whichever is more. So no single stall can close a class for good.
    """

    FIRST: Final = 4  # measurements of which a class takes the lower median
    WINDOW: Final = 8  # rounds behind the level
    STRIDE: Final = 4  # how many times wider than the widest believed round a guess may go
    MEMORY: Final = 16  # rounds over which an own cost is renewed
    CLIP: Final = 0.25  # furthest that a step looks up, in log milliseconds
    DOUBT: Final = 256  # rounds after which a measurement is in doubt,
    SHIFT: Final = 1.25  # and the factor between levels, or between guess and measurement, that matters

    def __init__(self, slope: float) -> None:
        self.slope = slope
        self.rounds = 0
        self._classes: dict[int, _RowClass] = {}  # by position in LADDER
        self._ratios: deque[float] = deque(maxlen=self.WINDOW)
        self._table: FloatArray | None = None  # prices of all classes at level 1, until the next measurement

    @property
    def level(self) -> float:
        """How much slower than the classes' own costs the machine runs now."""
        return median_low(self._ratios) if len(self._ratios) > 1 else 1.0  # of one alone nothing can be said

    def learn(self, rows: int, ms: float) -> None:
        """Take in one round of `rows` rows that lasted `ms`."""
        k, level = class_of(rows), self.level
        guess = self.prices()[k] if k not in self._classes and self._classes else 0.0
        one = self._classes.setdefault(k, _RowClass())
        at_level = ms / level
        self.rounds += 1
        if len(one.first) >= self.FIRST:
            self._ratios.append(ms / one.own_ms)
            rate = min(1.0, (self.rounds - one.measured_at) / self.MEMORY)
            one.own_ms *= exp(rate * min(self.CLIP, log(at_level / one.own_ms)))
        else:
            cheap = not one.first and ms <= self.SHIFT * guess
            one.first += [at_level] * (2 if cheap else 1)
            one.own_ms = median_low(one.first)
        one.measured_at, one.level_then = self.rounds, level
        self._table = None

    def ms(self, rows: NDArray[np.int64]) -> FloatArray:
        """`float64[n]` expected milliseconds of rounds of these rows; in units of a row before any measurement."""
        prices = self.prices()
        return np.array([prices[class_of(row)] for row in rows.tolist()])

    @property
    def reach(self) -> int:
        """The widest round worth guessing the price of."""
        return self.STRIDE * max((LADDER[k] for k in self._believed()), default=1)

    def believed(self, rows: int) -> bool:
        """Whether the price of this width is its own."""
        return class_of(rows) in self._believed()

    def doubtful(self, rows: int) -> bool:
        """Whether the price of this width is a guess or was measured long ago."""
        one = self._classes.get(class_of(rows))
        return one is None or len(one.first) < 2 or self.rounds - one.measured_at > self.DOUBT

    def shifted(self, rows: int) -> bool:
        """Whether the level has moved since this width was measured, and no longer ago than a moment."""
        one = self._classes.get(class_of(rows))
        if one is None or self.rounds - one.measured_at < 2 * self.WINDOW:
            return False
        return not 1 / self.SHIFT < self.level / one.level_then < self.SHIFT

    def prices(self) -> FloatArray:
        """`float64[len(LADDER)]` expected milliseconds of a round of each class."""
        if self._table is None:
            self._table = self._guess()
        return self._table * self.level

    def state(self) -> dict[str, float]:
        """The own cost in milliseconds of every believed class, by its top."""
        return {str(LADDER[k]): self._classes[k].own_ms for k in self._believed()}

    def load(self, state: Any) -> None:
        """Take up what `state` returned.

        Raises:
            DamagedState: it is something else.
        """
        tops = {str(top): k for k, top in enumerate(LADDER)}
        if not isinstance(state, dict) or not state.keys() <= tops.keys():
            raise DamagedState(f"stored state: {state!r} are no costs of row classes")
        for top in state:
            own_ms = number(state, top, least=1e-6)
            self._classes[tops[top]] = _RowClass([own_ms] * self.FIRST, own_ms)
        self._table = None

    def _believed(self) -> list[int]:
        return sorted(k for k, one in self._classes.items() if len(one.first) >= 2)

    def _guess(self) -> FloatArray:
        """Prices at level 1: own costs where believed, and what their neighbours say elsewhere."""
        tops = np.array(LADDER, np.float64)
        curve = 1.0 + self.slope * (tops - 1.0)
        known = self._believed()
        if not known:
            return curve
        x, y = tops[known], np.array([self._classes[k].own_ms for k in known])
        prices: FloatArray = np.interp(tops, x, y)
        prices[tops < x[0]] = y[0] * curve[tops < x[0]] / curve[known[0]]
        slope = self.slope * y[-1] / curve[known[-1]]
        if len(x) > 1:
            slope = max(slope, (y[-1] - y[-2]) / (x[-1] - x[-2]))
        wider = tops > x[-1]
        prices[wider] = y[-1] + slope * (tops[wider] - x[-1])
        for k, one in self._classes.items():
            if k not in known:
                prices[k] = min(prices[k], one.own_ms)
        return prices


class AcceptCounts:
    """How often candidates of each kind were right, of this request and of all.

    Three layers, each the prior of the next: the candidate's raw price counts as `WEIGHT` outcomes beside the kind's
    outcomes in all requests, and their mean as `WEIGHT` outcomes beside this request's own. Old outcomes fade.
    """

    WEIGHT: Final = 6.0
    MEMORY: Final = 512.0  # outcomes remembered of a kind over all requests,
    REQUEST_MEMORY: Final = 48.0  # and within one
    REQUESTS: Final = 1024  # requests remembered

    def __init__(self) -> None:
        self.shared: dict[str, list[float]] = {}  # kind -> [right, outcomes]
        self._requests: dict[str, dict[str, list[float]]] = {}

    def price(self, request_id: str, kinds: list[str], raw: list[float]) -> FloatArray:
        """`float64[n]` the probability of each candidate, given that its parent is accepted."""
        own = self._requests.get(request_id, {})
        weight, nothing = self.WEIGHT, (0.0, 0.0)
        prices = []
        for kind, prior in zip(kinds, raw, strict=True):
            right, seen = self.shared.get(kind, nothing)
            mean = (right + weight * prior) / (seen + weight)
            right, seen = own.get(kind, nothing)
            prices.append((right + weight * mean) / (seen + weight))
        return np.array(prices)

    def state(self) -> dict[str, list[float]]:
        """Of every kind, over all requests: how many were right, and outcomes."""
        return {kind: [*pair] for kind, pair in self.shared.items()}

    def load(self, state: Any) -> None:
        """Take up what `state` returned.

        Raises:
            DamagedState: it is something else.
        """
        if not isinstance(state, dict):
            raise DamagedState(f"stored state: {state!r} are no counts")
        shared = {kind: floats(state, kind, (2,), least=0.0).tolist() for kind in state}
        if wrong := [kind for kind, (right, seen) in shared.items() if right > seen]:
            raise DamagedState(f"stored state: {wrong[0]!r} was right more often than it was seen")
        self.shared = shared

    def learn(self, request_id: str, kind: str, right: bool) -> None:
        """Take in one outcome."""
        own = self._requests.pop(request_id, None) or {}
        self._requests[request_id] = own  # now the latest
        if len(self._requests) > self.REQUESTS:
            del self._requests[next(iter(self._requests))]
        for counts, memory in ((self.shared, self.MEMORY), (own, self.REQUEST_MEMORY)):
            pair = counts.setdefault(kind, [0.0, 0.0])
            keep = min(1.0, (memory - 1.0) / max(pair[1], 1.0))
            pair[0], pair[1] = pair[0] * keep + right, pair[1] * keep + 1.0
