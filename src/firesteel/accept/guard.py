"""The guard: which of two prices has been the better one lately (AdaSpark §3.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from firesteel.fit.stored import number
from firesteel.tree import BoolArray, FloatArray


class Guard:
    """The log losses of both prices over the same labels, old ones fading.

    The loss is that of every labelled node by itself, as in the paper's Table 2, since the head-based estimate knows
    no "none". While they are level, as at first, the head-based estimate prices: "only while [the fitted model's] is
    the lower".

    Args:
        half_life: labelled parents after which a loss counts half.
    """

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.fitted = self.head = 0.0  # decayed sums

    @property
    def trusts_fit(self) -> bool:
        """Whether the fitted model prices the tree."""
        return self.fitted < self.head

    def score(self, fitted: FloatArray, head: FloatArray, right: BoolArray, parents: int) -> None:
        """Take in both prices of the labelled nodes of some parents, before either has learned from them."""
        keep = 0.5 ** (parents / self._half_life)
        self.fitted = self.fitted * keep + log_loss(fitted, right)
        self.head = self.head * keep + log_loss(head, right)

    def facts(self) -> dict[str, Any]:
        """Which price the round had, and the losses that decided it."""
        return {"trusts_fit": self.trusts_fit, "fitted": round(self.fitted, 4), "head": round(self.head, 4)}

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {"fitted": self.fitted, "head": self.head}

    def load(self, state: Any) -> None:
        """Take up what `state` returned, or raise `DamagedState`."""
        self.fitted, self.head = number(state, "fitted", least=0.0), number(state, "head", least=0.0)


def log_loss(q: FloatArray, right: BoolArray) -> float:
    """Sum of -ln of the probability that was given to what happened."""
    said = np.where(right, q, 1.0 - q)
    return -float(np.log(np.maximum(said, 1e-9)).sum())
