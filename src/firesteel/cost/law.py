"""What a verify of one width costs: a law in context, a level, and the samples behind them (AdaSpark §3.2, Eq. 4, 5).

    law     a low quantile of its times as a function of context: a property of the kernels, slow to change
    level   lowest of its last 8 times over the law there: the machine as it is, up and down within 8 rounds
    bank    the newest 16 samples of every context band, on which the law is fitted anew when a request ends

Contexts arrive one request at a time, so each online step pulls the law to where the context is now; only the bank
holds the contrast between requests that teaches the slope.

Where the paper is silent:
- A law starts flat at its scale, which the elastic net pulls to as well.
- The level compares old times with the law of now, so that a refit does not leave it stale.
- A refit starts from the online law and leaves it its rates: they say how much it has seen.

Not known here: other widths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from firesteel.cost.config import CostConfig
from firesteel.errors import DamagedState
from firesteel.fit.quantile import FLAT, basis, context_law, pinball, refit, step
from firesteel.fit.stored import field, floats, number
from firesteel.tree import BoolArray, FloatArray

Sample = tuple[float, float]  # context, milliseconds


class WidthLaw:
    """One width. Times are in milliseconds outside, and inside the law in units of `scale`."""

    def __init__(self, config: CostConfig) -> None:
        self._config = config
        self.law = context_law(config.solver())
        self.samples = 0
        self.scale = self.lowest_ms = np.inf  # the lowest of the first three times, and of all
        self.level = 1.0
        self.slowness: float | None = None  # what the clock read when it was last measured
        self.bank: dict[int, deque[Sample]] = {}  # by bit length of the context
        self.stale = False  # whether the bank has samples since the last refit
        self._last: deque[tuple[FloatArray, float]] = deque(maxlen=config.level_window)  # basis, milliseconds

    @property
    def fitted(self) -> bool:
        """Whether the law has enough samples; until then the price is the lowest time."""
        return self.samples >= self._config.law_samples

    def learn(self, context: float, ms: float, slowness: float | None) -> None:
        """A verify at this context took `ms`, above 0, when the clock read `slowness`."""
        self.bank.setdefault(band(context), deque(maxlen=self._config.bank)).append((context, ms))
        self._last.append((basis(context, self._config.context_unit), ms))
        self.samples += 1
        self.lowest_ms = min(self.lowest_ms, ms)
        self.slowness, self.stale = slowness, True
        if self.samples <= self._config.law_samples:
            self.scale = self.lowest_ms
        if not self.fitted:
            return
        collected = self.samples == self._config.law_samples  # all of them for the law now
        new = chain.from_iterable(self.bank.values()) if collected else [(context, ms)]
        for at, took in new:
            step(self.law, basis(at, self._config.context_unit), took / self.scale, self._config.tau)
        self.find_level()

    def law_ms(self, context: FloatArray | float) -> FloatArray:
        """The law at contexts [n], in milliseconds, within its clamp."""
        return self._at(basis(context, self._config.context_unit))

    def _at(self, phi: FloatArray) -> FloatArray:
        least, most = self.clamp_ms
        ms: FloatArray = np.minimum(np.maximum(phi @ self.law.weights * self.scale, least), most)
        return ms

    @property
    def price_weights(self) -> FloatArray:
        """`float64[5]` in units of the scale: the law's, or flat at the lowest time while there is no law."""
        return self.law.weights if self.fitted else np.array(FLAT) * (self.lowest_ms / self.scale)

    @property
    def clamp_ms(self) -> tuple[float, float]:
        """Between what a law may say."""
        least, most = self._config.law_clamp
        return least * self.lowest_ms, most * self.lowest_ms

    def find_level(self) -> None:
        """The level by the last verifies and the law as they are now."""
        if not self._last or not self.fitted:
            return
        phi, ms = zip(*self._last, strict=True)
        least, most = self._config.level_clamp
        self.level = min(max(float((np.array(ms) / self._at(np.array(phi))).min()), least), most)

    def state(self) -> dict[str, Any]:
        """Everything but the level, as JSON values."""
        return {
            "law": self.law.state(),
            "samples": self.samples,
            "scale": self.scale,
            "lowest_ms": self.lowest_ms,
            "slowness": self.slowness,
            "bank": [[list(sample) for sample in samples] for samples in self.bank.values()],
        }

    @classmethod
    def of(cls, state: Any, config: CostConfig) -> WidthLaw:
        """What `state` returned, as a law again.

        Raises:
            DamagedState: it is something else.
        """
        one = cls(config)
        one.law.load(field(state, "law"))
        one.scale, one.lowest_ms = number(state, "scale"), number(state, "lowest_ms")
        if field(state, "slowness") is not None:
            one.slowness = number(state, "slowness")
        banks = field(state, "bank")
        if not isinstance(banks, list) or min(one.scale, one.lowest_ms, one.slowness or 1.0) <= 0.0:
            raise DamagedState(f"stored state: a width's bank or times are not what they should be: {state}")
        for i in range(len(banks)):
            for context, ms in floats({"bank": banks[i]}, "bank", (-1, 2), least=0.0).tolist():
                if ms == 0.0:
                    raise DamagedState("stored state: a sample of no time")
                one.bank.setdefault(band(context), deque(maxlen=config.bank)).append((context, ms))
        one.samples = int(number(state, "samples", least=1.0))
        one.stale = True
        return one


def band(context: float) -> int:
    """The band of a context: its bit length. 128 to 255 tokens are one band, 256 to 511 the next."""
    return int(context).bit_length()


def refit_laws(laws: Sequence[WidthLaw], config: CostConfig) -> None:
    """Fit every law to its bank, all at once, and keep the fit where it predicts the judged samples better.

    The newest quarter of every band of four samples or more is held out from the fit and judges it, together with all
    samples of smaller bands, which have none to spare.
    """
    laws = [law for law in laws if law.fitted and law.stale]
    if not laws:
        return
    longest = max(sum(map(len, law.bank.values())) for law in laws)
    contexts, y = np.zeros((2, len(laws), longest))
    train, judged = np.zeros((2, len(laws), longest), np.bool_)
    for i, law in enumerate(laws):
        start = 0
        for samples in law.bank.values():
            stop = start + len(samples)
            contexts[i, start:stop], y[i, start:stop] = np.array(samples).T
            held = len(samples) // config.held_out if len(samples) >= config.held_out else 0
            train[i, start : stop - held] = True
            judged[i, stop - held if held else start : stop] = True
            start = stop
        y[i] /= law.scale
    phi = basis(contexts, config.context_unit)
    online = np.stack([law.law.weights for law in laws])
    fitted = refit(phi, y, train, online, tau=config.tau, solver=config.solver(), steps=config.refit_steps)
    better = _loss(phi, y, judged, fitted, config.tau) < _loss(phi, y, judged, online, config.tau)
    for law, weights, wins in zip(laws, fitted, better.tolist(), strict=True):
        law.stale = False
        if wins:
            law.law.move(weights)
            law.find_level()


def _loss(phi: FloatArray, y: FloatArray, judged: BoolArray, weights: FloatArray, tau: float) -> FloatArray:
    """`float64[laws]` quantile loss of weights [laws, 5] on the judged samples [laws, samples]."""
    v = y - (phi @ weights[:, :, None])[:, :, 0]
    loss: FloatArray = (pinball(v, tau) * judged).sum(axis=1)
    return loss
