"""A machine with a scripted clock, and a chooser of the plainest kind, to run a cost model on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from firesteel.cost.base import RoundCost
from firesteel.cost.online import OnlineCost

Curve = Callable[[int, float], float]  # rows, context -> the machine's own milliseconds
Noise = Callable[[np.random.Generator], float]  # what interference adds, as a share of the time


def calm(chance: np.random.Generator) -> float:
    """A jitter of half a percent, one-sided."""
    return abs(chance.normal(0.0, 0.005))


def bursts(chance: np.random.Generator) -> float:
    """Three rounds in ten are disturbed, by half of their time on average."""
    return calm(chance) + (chance.exponential(0.5) if chance.random() < 0.3 else 0.0)


@dataclass
class Machine:
    """Requests served one after another, a round at a time.

    Fields:
        curve: what a verify takes.
        survival: `[available - 1]` falling Q of the candidates, the same in every round.
        slowness: of everything, as it is now.
    """

    curve: Curve
    cost: OnlineCost = field(default_factory=OnlineCost)
    survival: np.ndarray = field(default_factory=lambda: 0.8 * 0.93 ** np.arange(63))
    noise: Noise = calm
    fixed_ms: float = 8.0
    slowness: float = 1.0
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    width: int = 0  # what the chooser holds
    chosen: list[int] = field(default_factory=list)
    measured: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # of every round,
    contexts: list[float] = field(default_factory=list)  # and where it ran

    def tokens(self, rows: np.ndarray | int) -> np.ndarray:
        """Expected tokens of verifies of these rows."""
        return np.concatenate([[0.0], 1.0 + np.concatenate([[0.0], np.cumsum(self.survival)])])[rows]

    def serve(self, rounds: int, context: float = 500.0, step: float = 3.0, *, requests: int = 1) -> None:
        """One request, or a batch of them that draft and end together: the per-round ratio with a margin of 4%."""
        available = len(self.survival) + 1
        for i in range(rounds):
            width = self.choose(requests, available, context)
            self.run(width, context, first=i == 0)
            context += step
        self.cost.refit()

    def choose(self, requests: int, available: int, context: float) -> int:
        offer = self.cost.offer(requests, available)
        if offer.measure is not None:
            self.measured.append(offer.measure)
            return offer.measure
        widths = offer.widths[offer.widths <= available]
        if not len(widths):
            return requests
        rate = self.tokens(widths) / (self.cost.draft_ms(7) + self.cost.verify_ms(widths, context))
        best = int(widths[np.argmax(rate)])
        held = float(rate[widths == self.width][0]) if self.width in widths else 0.0
        if rate.max() > 1.04 * held:
            self.width = best
        gaps = self.cost.held(self.width, context)
        bound = self.tokens(gaps.most_rows) / (self.cost.draft_ms(7) + gaps.least_ms)
        held = float(self.tokens(self.width) / (self.cost.draft_ms(7) + self.cost.verify_ms([self.width], context)[0]))
        self.cost.split(gaps, bound > 1.04 * held)
        self.chosen.append(self.width)
        return self.width

    def run(self, rows: int, context: float, *, first: bool = False) -> None:
        """One round of `rows` rows, learned from; the first of a request runs cold, 8% slower."""
        self.rows.append(rows)
        self.contexts.append(context)
        slow = self.slowness * (1.08 if first else 1.0)
        verify_ms = self.curve(rows, context) * slow * (1.0 + self.noise(self.chance))
        fixed_ms = self.fixed_ms * slow * (1.0 + self.noise(self.chance))
        self.cost.learn(RoundCost(rows, context, verify_ms, fixed_ms, 7, first))

    def error(self, context: float, widths: list[int] | None = None) -> float:
        """The largest relative error of the prices of the widths that are offered."""
        rows = np.array(self.cost.offer(1, 64).widths if widths is None else widths)
        truth = np.array([self.curve(int(n), context) for n in rows]) * self.slowness
        truth = np.minimum.accumulate(truth[::-1])[::-1]
        return float(np.abs(self.cost.verify_ms(rows, context) / truth - 1.0).max())
