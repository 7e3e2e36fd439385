"""Whether to draft at all (ours: AdaSpark always drafts, on targets where a draft is small beside a verify).

A draft costs its time whatever is verified afterwards, so it has to be given up before it is made. Rounds with one have
to be faster than the newest rounds without, and than plain ones at today's prices: the newest may be long ago, of
another batch or a slower machine. After drafts that did not pay come rounds without, each time twice as many; then a
trial. A policy starts without, so that there is something to compare with.

Rounds are judged by what they were expected to commit and not by the dice, unless the dice say clearly that the
expectation is wrong: a drafter that is sure and never right is found out long before its price has followed.

Not known here: how the rounds chose their widths.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import sqrt
from typing import Any

from firesteel.policy.config import AdaSparkConfig


@dataclass(frozen=True)
class Earned:
    """What a round brought and took; or the sums of several.

    Fields:
        expected: tokens it was expected to commit.
        committed: tokens it did.
        accepted: those of them that were proposed.
        ms: its time.
        plain: tokens that plain rounds commit in that time.
    """

    expected: float
    committed: float
    accepted: float
    ms: float
    plain: float

    def rate(self, doubt: float) -> float:
        """Tokens per millisecond as expected, or at most `doubt` deviations above what the dice gave."""
        return min(self.expected, self.committed + doubt * sqrt(self.accepted + 1.0)) / self.ms


class Resting:
    """Counts the rounds to rest, and judges the trials."""

    def __init__(self, config: AdaSparkConfig) -> None:
        self._config = config
        self._left = config.trial
        self._rest = 0  # rounds of the last rest that a judgement ordered
        self.rests = False  # whether the round in flight is one of a rest
        self._stale = True  # whether the last round had no draft
        self._recent = {kind: deque[Earned](maxlen=config.judged) for kind in (True, False)}

    def drafts(self) -> bool:
        """Whether the next round should draft."""
        self.rests = self._left > 0
        self._left -= self.rests
        return not self.rests

    def new_request(self) -> None:
        """Its text may be another kind: a long rest is cut short."""
        self._left = min(self._left, self._config.first_rest)

    def learn(self, drafted: bool, earned: Earned) -> None:
        """Take in a round. The first draft after a rest makes up for the tokens of the rest: it is not judged."""
        catching_up, self._stale = drafted and self._stale, not drafted
        if catching_up:
            return
        self._recent[drafted].append(earned)
        if not drafted or len(self._recent[True]) < self._config.trial or not self._recent[False]:
            return
        drafts, others = self._sum(True), self._sum(False)
        if drafts.rate(self._config.doubt) >= max(drafts.plain / drafts.ms, others.rate(self._config.doubt)):
            if len(self._recent[True]) == self._config.judged:
                self._rest = 0  # of fewer rounds, a wrong expectation may have spoken
            return
        self._rest = min(self._config.longest_rest, max(self._config.first_rest, 2 * self._rest))
        self._left = self._rest
        self._recent[True].clear()

    def facts(self) -> dict[str, Any]:
        """Whether the round in flight rests, rounds left of the rest, and its whole length: 0 if nothing ordered it."""
        return {"now": self.rests, "left": self._left, "length": self._rest}

    def _sum(self, drafted: bool) -> Earned:
        rounds = ((one.expected, one.committed, one.accepted, one.ms, one.plain) for one in self._recent[drafted])
        return Earned(*map(sum, zip(*rounds, strict=True)))
