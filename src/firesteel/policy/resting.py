"""Whether to draft at all (ours: AdaSpark always drafts, on targets where a draft is small beside a verify).

A draft costs its time whatever is verified afterwards, so it has to be given up before it is made. Rounds of both kinds
are judged by what they were expected to commit, by the calibrated price and not by the dice, over the time they took.
The last rounds without may be long ago, of another batch or a slower machine, so those with are compared with plain
rounds at today's prices as well. After drafts that did not pay come rounds without, each time twice as many; then a
trial. A policy starts without, so that there is something to compare with.

Not known here: how the rounds chose their widths.
"""

from __future__ import annotations

from collections import deque

from firesteel.policy.config import AdaSparkConfig


class Resting:
    """Counts the rounds to rest, and judges the trials."""

    def __init__(self, config: AdaSparkConfig) -> None:
        self._config = config
        self._left = config.trial
        self._rest = 0  # rounds of the last rest that a judgement ordered
        # Tokens and milliseconds of the newest rounds, and the tokens of plain rounds in that time.
        self._recent = {kind: deque[tuple[float, float, float]](maxlen=config.judged) for kind in (True, False)}

    def drafts(self) -> bool:
        """Whether the next round should draft."""
        if self._left == 0:
            return True
        self._left -= 1
        return False

    def new_request(self) -> None:
        """Its text may be another kind: a long rest is cut short."""
        self._left = min(self._left, self._config.first_rest)

    def learn(self, drafted: bool, tokens: float, ms: float, plain_rate: float = 0.0) -> None:
        """A round was expected to commit `tokens` and took `ms`; plain ones commit `plain_rate` tokens in one now."""
        self._recent[drafted].append((tokens, ms, plain_rate * ms))
        if not drafted or len(self._recent[True]) < self._config.trial or not self._recent[False]:
            return
        with_draft, without = self._sums(True), self._sums(False)
        if with_draft[0] >= max(with_draft[2], without[0] * with_draft[1] / without[1]):
            self._rest = 0
            return
        self._rest = min(self._config.longest_rest, max(self._config.first_rest, 2 * self._rest))
        self._left = self._rest
        self._recent[True].clear()

    def _sums(self, drafted: bool) -> tuple[float, float, float]:
        tokens, ms, plain = zip(*self._recent[drafted], strict=True)
        return sum(tokens), sum(ms), sum(plain)
