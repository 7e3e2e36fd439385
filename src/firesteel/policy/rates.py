"""What the long run pays: decode rates by context band, and what marginal rows really bring (AdaSpark §3.4).

Not known here: widths and their prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firesteel.errors import DamagedState
from firesteel.fit.stored import field, floats


class BandRates:
    """Committed tokens per millisecond of each band, both decayed with a half-life in rounds (§3.4 (i)).

    A band is whatever the policy says is alike: contexts of one bit length, with one order of batch sizes.
    """

    def __init__(self, half_life: int, rounds: int) -> None:
        self._keep, self._enough = 0.5 ** (1.0 / half_life), rounds
        self._sums: dict[tuple[int, int], tuple[float, float, int]] = {}  # tokens, milliseconds, rounds

    def learn(self, band: tuple[int, int], tokens: float, ms: float) -> None:
        """A round of this band committed `tokens` in `ms`, above 0."""
        had, took, rounds = self._sums.get(band, (0.0, 0.0, 0))
        self._sums[band] = had * self._keep + tokens, took * self._keep + ms, rounds + 1

    def rate(self, band: tuple[int, int]) -> float | None:
        """Tokens per millisecond; None until the band has enough rounds."""
        tokens, ms, rounds = self._sums.get(band, (0.0, 0.0, 0))
        return tokens / ms if rounds >= self._enough else None

    def state(self) -> list[list[float]]:
        """As JSON values: context bits, batch bits, tokens, milliseconds, rounds of every band."""
        return [[*band, *sums] for band, sums in sorted(self._sums.items())]

    def load(self, state: Any) -> None:
        """Take up what `state` returned. Raises DamagedState, and takes up nothing, if it is something else."""
        table = floats({"rates": state}, "rates", (-1, 5), least=0.0)
        if (table[:, 3] <= 0.0).any():
            raise DamagedState(f"stored state: rates of no time: {state}")
        self._sums = {(int(c), int(n)): (tokens, ms, int(rounds)) for c, n, tokens, ms, rounds in table.tolist()}


class Gain:
    """How many of the tokens that marginal rows promise they bring: a line in context (§3.4 (ii)).

        realised = (1 + a + b u) predicted        u = context / unit

    by least squares, with a ridge of `shrink` times each regressor's sum of squares, which pulls to 1. The paper keeps
    all observations; here they fade with a half-life, since drafters are replaced and a store may be old.
    """

    def __init__(self, unit: int, clamp: tuple[float, float], shrink: float, half_life: int) -> None:
        self._unit, self._clamp, self._shrink, self._keep = unit, clamp, shrink, 0.5 ** (1.0 / half_life)
        self._sums = [0.0] * 5  # of xx, xxu, xxuu, xr, xur: x predicted, r realised beyond it

    def learn(self, predicted: float, realised: float, context: float) -> None:
        """Marginal rows of one round: what they promised and what was accepted of them."""
        u, beyond = context / self._unit, realised - predicted
        new = (predicted, predicted * u, predicted * u * u, beyond, beyond * u)
        self._sums = [had * self._keep + predicted * more for had, more in zip(self._sums, new, strict=True)]

    def at(self, context: float) -> float:
        """The gain at a context, within its clamp; 1 before anything is known."""
        xx, xxu, xxuu, xr, xur = self._sums
        ridge = 1.0 + self._shrink
        det = ridge * ridge * xx * xxuu - xxu * xxu
        if det <= 1e-12 * xx * xxuu or det == 0.0:
            line = xr / (ridge * xx) if xx > 0.0 else 0.0
        else:
            a, b = (ridge * xxuu * xr - xxu * xur) / det, (ridge * xx * xur - xxu * xr) / det
            line = a + b * context / self._unit
        return min(max(1.0 + line, self._clamp[0]), self._clamp[1])

    def state(self) -> list[float]:
        """The five sums."""
        return [*self._sums]

    @staticmethod
    def load_all(gains: Sequence[Gain], state: Any) -> None:
        """Take up the states of several. Raises DamagedState, and takes up nothing, if they are something else."""
        table = floats(state, "gains", (len(gains), 5))
        if (table[:, [0, 2]] < 0.0).any():
            raise DamagedState(f"stored state: 'gains' holds {field(state, 'gains')}, which are no sums of squares")
        for gain, sums in zip(gains, table, strict=True):
            gain._sums = sums.tolist()
