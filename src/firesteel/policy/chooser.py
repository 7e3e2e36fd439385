"""Which width a round takes: Eq. 7 of AdaSpark §3.4, for a batch of requests that share one verify.

    V(n) = R + S(n0) + g_d dS_d(n) + g_n dS_ng(n) - rho (D + T(n, c))

over the offered widths n, in rows of the whole batch; R requests commit one token each whatever is drafted, and n0 is
8 rows per request. With one request it is the paper's rule. Until the band has a rate, the ratio of tokens to time
decides. The incumbent stays unless it is beaten by a margin.

Not known here: where candidates come from, and what is measured when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from firesteel.fit.stored import field
from firesteel.policy.config import AdaSparkConfig
from firesteel.policy.rates import BandRates, Gain
from firesteel.tree import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Growth:
    """What the candidates of a batch promise, best first.

    Fields:
        requests: R.
        context: their mean.
        survival: `float64[k]` Q of the candidates, falling.
        of_text: `bool[k]` which of them only the text proposes.
    """

    requests: int
    context: float
    survival: FloatArray
    of_text: BoolArray

    @property
    def available(self) -> int:
        """Rows of all candidates and anchors."""
        return self.requests + len(self.survival)

    @property
    def band(self) -> tuple[int, int]:
        """The band of its rate: bit lengths of the context and of the batch."""
        return int(self.context).bit_length(), self.requests.bit_length()


@dataclass(frozen=True)
class Choice:
    """Widths side by side.

    Fields:
        rows: `int64[n]`.
        tokens: `float64[n]` expected, gains applied.
        ms: `float64[n]` of the whole round.
        rate: rho, or None while the band has none.
        best: index of the one to run.
    """

    rows: IntArray
    tokens: FloatArray
    ms: FloatArray
    rate: float | None
    best: int


class Chooser:
    """Widths by value, and what the value rests on."""

    def __init__(self, config: AdaSparkConfig) -> None:
        self.config = config
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        c = self.config
        self.rates = BandRates(c.half_life, c.rate_rounds)
        # Of drafted and of text's rows, above the reference and below it.
        self.gains = [Gain(c.context_unit, c.gain_clamp, c.gain_shrink, c.gain_half_life) for _ in range(4)]
        self.incumbent: dict[bool, int] = {}  # rows per batch held with a draft and without

    def expected(self, growth: Growth) -> FloatArray:
        """`float64[k + 1]` tokens of verifies of R rows and of 1 to k candidates more: Eq. 7 without its time."""
        q, of_text = growth.survival, growth.of_text
        reference = (self.config.reference - 1) * growth.requests
        above_drafted, above_text, below_drafted, below_text = [gain.at(growth.context) for gain in self.gains]
        scaled = np.empty_like(q)
        scaled[:reference] = np.where(of_text[:reference], below_text, below_drafted)
        scaled[reference:] = np.where(of_text[reference:], above_text, above_drafted)
        scaled *= q
        tokens = np.zeros(len(q) + 1)
        scaled.cumsum(out=tokens[1:])
        tokens += growth.requests + float(q[:reference].sum()) - float(scaled[:reference].sum())
        expected: FloatArray = np.maximum(tokens, growth.requests)
        return expected

    def choose(
        self, band: tuple[int, int], rows: IntArray, tokens: FloatArray, ms: FloatArray, *, drafted: bool
    ) -> Choice:
        """The best of widths `rows` [n], rising, whose rounds earn `tokens` and take `ms`; it becomes the incumbent.

        The first incumbent is the widest, so that there are rounds that teach the gains (§3.4 (ii)).
        """
        rate, held = self.rates.rate(band), self.incumbent.get(drafted)
        best = self.best(rows, tokens, ms, rate, held)
        if best != _place(rows, held):  # else it stays, even where this round has too few candidates for it
            self.incumbent[drafted] = int(rows[best])
        return Choice(rows, tokens, ms, rate, best)

    def best(self, rows: IntArray, tokens: FloatArray, ms: FloatArray, rate: float | None, held: int | None) -> int:
        """The index of the width to run when `held` rows are the incumbent; None is the widest."""
        i = _place(rows, held)
        value = tokens / ms if rate is None else tokens - rate * ms
        best = int(value.argmax())
        return best if self.beats(float(value[best]), float(value[i]), float(tokens[i]), rate) else i

    def beats(self, value: float, held: float, held_tokens: float, rate: float | None) -> bool:
        """Whether a value beats the incumbent's by the margin (§3.4 (iii)); ratios while there is no rate."""
        if rate is None:
            return value > held * (1.0 + self.config.ratio_margin)
        return value > held + self.config.margin * held_tokens

    def could_win(self, choice: Choice, tokens: FloatArray, ms: FloatArray) -> BoolArray:
        """`bool[n]` whether rounds that earn `tokens` and take `ms` [n] would beat the chosen one."""
        best = choice.best
        if choice.rate is None:
            value, held = tokens / np.maximum(ms, 1e-9), choice.tokens[best] / choice.ms[best]
        else:
            value, held = tokens - choice.rate * ms, choice.tokens[best] - choice.rate * choice.ms[best]
        margins = [self.beats(float(v), float(held), float(choice.tokens[best]), choice.rate) for v in value]
        return np.array(margins, np.bool_)

    def learn_gains(self, growth: Growth, accepted: BoolArray, narrowest: int) -> None:
        """What the rows of a verified prefix brought, above the reference and below it.

        Args:
            growth: cut to the verified candidates.
            accepted: `bool[k]` which of them were.
            narrowest: rows of the narrowest offered width: what every width has teaches nothing about a choice.
        """
        reference = (self.config.reference - 1) * growth.requests
        first = max(0, narrowest - growth.requests)
        for part, gains in ((slice(reference, None), self.gains[:2]), (slice(first, reference), self.gains[2:])):
            q, hit, of_text = growth.survival[part], accepted[part], growth.of_text[part]
            for gain, mine in zip(gains, (~of_text, of_text), strict=True):
                if (predicted := float(q @ mine)) > 0.0:
                    gain.learn(predicted, float(np.count_nonzero(hit & mine)), growth.context)

    def state(self) -> dict[str, Any]:
        """Rates and gains, as JSON values."""
        return {"rates": self.rates.state(), "gains": [gain.state() for gain in self.gains]}

    def load(self, state: Any) -> None:
        """Take up what `state` returned. Raises DamagedState, and is empty then, if it is something else."""
        self.reset()
        rates, gains = BandRates(self.config.half_life, self.config.rate_rounds), self.gains
        rates.load(field(state, "rates"))
        Gain.load_all(gains, state)
        self.rates = rates


def _place(rows: IntArray, held: int | None) -> int:
    """The index of the incumbent among widths `rows`, or of the widest if it is wider or there is none."""
    return len(rows) - 1 if held is None else min(int(rows.searchsorted(held)), len(rows) - 1)
