"""Whether to draft at all (ours: AdaSpark always drafts, on targets where a draft is small beside a verify).

A draft costs its time whatever is verified afterwards, so it has to be given up before it is made. Rounds of both kinds
are judged by what they were expected to commit, by the calibrated price and not by the dice, over the time they took.
After drafts that did not pay come rounds without, each time twice as many; then a trial. A policy starts without, so
that there is something to compare with.

Not known here: how the rounds chose their widths.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from firesteel.policy.config import AdaSparkConfig


class Resting:
    """Counts the rounds to rest, and judges the trials."""

    def __init__(self, config: AdaSparkConfig) -> None:
        self._config = config
        self._left = config.trial
        self._rest = 0  # rounds of the last rest that a judgement ordered
        self.rests = False  # whether the round in flight is one of a rest
        self._recent = {kind: deque[tuple[float, float]](maxlen=config.judged) for kind in (True, False)}

    def drafts(self) -> bool:
        """Whether the next round should draft."""
        self.rests = self._left > 0
        self._left -= self.rests
        return not self.rests

    def new_request(self) -> None:
        """Its text may be another kind: a long rest is cut short."""
        self._left = min(self._left, self._config.first_rest)

    def learn(self, drafted: bool, tokens: float, ms: float) -> None:
        """A round was expected to commit `tokens` and took `ms`."""
        self._recent[drafted].append((tokens, ms))
        if not drafted or len(self._recent[True]) < self._config.trial or not self._recent[False]:
            return
        if self._rate(True) >= self._rate(False):
            self._rest = 0
            return
        self._rest = min(self._config.longest_rest, max(self._config.first_rest, 2 * self._rest))
        self._left = self._rest
        self._recent[True].clear()

    def facts(self) -> dict[str, Any]:
        """Whether the round in flight rests, rounds left of the rest, and its whole length: 0 if nothing ordered it."""
        return {"now": self.rests, "left": self._left, "length": self._rest}

    def _rate(self, drafted: bool) -> float:
        recent = self._recent[drafted]
        return sum(tokens for tokens, _ in recent) / sum(ms for _, ms in recent)
