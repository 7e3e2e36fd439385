"""AdaGrad on one number in a band: what adapts fast, from nothing, within one request (AdaSpark §3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True)
class AdaGradConfig:
    """Fields:
    rate: length of the first step.
    band: the number stays within -band and band.
    cap: most that the squared gradients add up to, which floors the rate; infinity lets it fall for ever.
    """

    rate: float
    band: float
    cap: float = float("inf")


class AdaGrad:
    """A number that starts at 0 and goes down its gradients, each step the shorter the more it has seen."""

    __slots__ = ("_config", "_squares", "value")

    def __init__(self, config: AdaGradConfig) -> None:
        self._config = config
        self._squares = 0.0
        self.value = 0.0

    def update(self, gradients: ArrayLike) -> None:
        """One step for gradients `[n]` that were all taken at the present value."""
        config, g = self._config, np.asarray(gradients, np.float64)
        self._squares = min(self._squares + float(g @ g), config.cap)
        if self._squares > 0.0:
            step = config.rate * float(g.sum()) / sqrt(self._squares)
            self.value = min(max(self.value - step, -config.band), config.band)
