"""FTRL-Proximal: online learning with a rate per coordinate, an elastic net and a prior (AdaSpark §3.2, §3.3).

After gradients g_1 .. g_t of a coordinate, taken at its deviations d_1 .. d_t from the prior, the next deviation is

    argmin over d of   sum_s g_s d  +  1/2 sum_s sigma_s (d - d_s)^2  +  l1 |d|  +  l2 d^2

where sum_s sigma_s = (stabiliser + sqrt n) / rate and n is the sum of squared gradients (McMahan et al. 2013, whose
lambda_2 is 2 l2: here the penalty is that of AdaSpark Eq. 4). So steps shrink as gradients add up, in each coordinate
by itself. A cap on n floors the step at rate / (stabiliser + sqrt cap): from there on it is gradient descent at a
constant rate, which follows what drifts.

The gate holds a coordinate at its prior until the gradients that it got there say more than chance would: until
|sum g| > gate sqrt m after m updates (§3.3 sets 3). It opens once and stays open, since the sum stops growing as soon
as the coordinate follows it, and would fall behind sqrt m again.

Not known here: losses and features. The caller makes the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from firesteel.errors import InvalidParameter
from firesteel.fit.stored import floats
from firesteel.tree import FloatArray


@dataclass(frozen=True, kw_only=True)
class FtrlConfig:
    """Fields:
        rate: step of a coordinate, before its gradients have added up; above 0.
        stabiliser: what the root of the squared gradients is added to; 0 or more, 0 makes the first step `rate` long.
        l1, l2: weights of |d| and of d^2, once over all updates and not once per update; 0 or more.
        cap: most that the squared gradients add up to, which floors the rate; infinity lets it fall for ever.
        gate: how many root-updates the gradients must add up to before the prior is left; 0 leaves it at once.

    Raises:
        InvalidParameter: a value is out of range.
    """

    rate: float
    stabiliser: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    cap: float = float("inf")
    gate: float = 0.0

    def __post_init__(self) -> None:
        if not self.rate > 0.0 or not self.cap > 0.0:
            raise InvalidParameter(f"rate and cap must be above 0, got {self.rate} and {self.cap}")
        if not min(self.stabiliser, self.l1, self.l2, self.gate) >= 0.0:
            raise InvalidParameter(f"stabiliser, l1, l2 and gate must be 0 or more, got {self}")


class Ftrl:
    """Weights of any shape, each its own learner.

        learner = Ftrl(prior, FtrlConfig(rate=0.05))
        learner.update(gradient(learner.weights))                       # all coordinates
        learner.update(gradient_of_some, at=indices)                    # distinct coordinates, the others rest

    A gradient of exactly 0 is no update: it leaves the coordinate as it is and does not count for the gate, so the
    gradient of a sparse example may be given in full.

    Args:
        prior: where the weights start, and what the elastic net pulls them to.
        config: rates and penalties, the same for all coordinates. Coordinates that need others are another learner.
        non_negative: `bool`, broadcast over the weights: which of them may not fall below 0. The prior of such a
            weight may not either. Gradients that would push it further are forgotten, so that it leaves 0 as soon as
            they turn.
    """

    def __init__(self, prior: ArrayLike, config: FtrlConfig, *, non_negative: ArrayLike = False) -> None:
        self.config = config
        self.prior: FloatArray = np.array(prior, np.float64)
        self._lowest = np.where(np.broadcast_to(non_negative, self.prior.shape), -self.prior, -np.inf)
        self._bounded = bool(np.any(non_negative))
        if (self._lowest > 0.0).any():
            raise InvalidParameter(f"a non-negative weight needs a non-negative prior, got {self.prior}")
        self.reset()

    def reset(self) -> None:
        """Back to the prior, everything forgotten."""
        self.weights: FloatArray = self.prior.copy()
        """Read-only for callers; `update` changes it in place."""
        self.squares: FloatArray = np.zeros_like(self.prior)  # of gradients, added up to the cap
        self.updates: FloatArray = np.zeros_like(self.prior)
        self._linear: FloatArray = np.zeros_like(self.prior)  # z: gradients less sigma_s d_s; at the prior, sum g
        self._open = np.full(self.prior.shape, self.config.gate == 0.0)

    def update(self, gradient: ArrayLike, at: Any = slice(None)) -> None:
        """One step.

        Args:
            gradient: of the loss by the weights at `at`, in their shape.
            at: an index into the weights, by default of them all. No coordinate may come twice in it.
        """
        g = np.asarray(gradient, np.float64)
        self._step(g, g * g, g != 0.0, at)

    def update_together(self, gradients: ArrayLike) -> None:
        """As many updates as there are gradients, `[n, *shape]`, all of them taken at the present weights."""
        g = np.asarray(gradients, np.float64)
        self._step(g.sum(0), (g * g).sum(0), (g != 0.0).sum(0), slice(None))

    def _step(self, g: FloatArray, squares: FloatArray, updates: ArrayLike, at: Any) -> None:
        """Take in the sum `g` of the gradients of some updates, the sum of their squares, and their number."""
        config, before = self.config, self.squares[at]
        after = np.minimum(before + squares, config.cap)
        root = np.sqrt(after)
        linear = self._linear[at] + g
        linear -= (root - np.sqrt(before)) / config.rate * (self.weights[at] - self.prior[at])
        updates = self.updates[at] + updates

        strength = (config.stabiliser + root) / config.rate + 2.0 * config.l2
        if config.stabiliser == 0.0:  # with no gradient yet nothing holds a weight, and nothing moves it
            strength = np.maximum(strength, 1e-300)
        pull = linear if config.l1 == 0.0 else np.copysign(np.maximum(np.abs(linear) - config.l1, 0.0), linear)
        deviation = -pull / strength
        if config.gate > 0.0:
            self._open[at] |= np.abs(linear) > config.gate * np.sqrt(updates)
            deviation = deviation * self._open[at]
        if self._bounded and (below := deviation < (lowest := self._lowest[at])).any():
            deviation = np.where(below, lowest, deviation)
            linear = np.where(below, config.l1 - lowest * strength, linear)

        self.squares[at], self.updates[at], self._linear[at] = after, updates, linear
        self.weights[at] = self.prior[at] + deviation

    def move(self, weights: ArrayLike) -> None:
        """Go on from other weights, at the rates that were reached; all gates open."""
        deviation = np.maximum(np.asarray(weights, np.float64) - self.prior, self._lowest)
        strength = (self.config.stabiliser + np.sqrt(self.squares)) / self.config.rate + 2.0 * self.config.l2
        self._linear = -deviation * strength - self.config.l1 * np.sign(deviation)
        self._open = np.ones_like(self._open)
        self.weights = self.prior + deviation

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON values, the rate that was reached among them."""
        return {
            "weights": self.weights.tolist(),
            "squares": self.squares.tolist(),
            "updates": self.updates.tolist(),
            "linear": self._linear.tolist(),
            "open": self._open.tolist(),
        }

    def load(self, state: Any) -> None:
        """Take up what `state` returned of a learner of the same shape.

        Raises:
            DamagedState: it is something else; nothing is taken up.
        """
        shape = self.prior.shape
        weights, linear = floats(state, "weights", shape), floats(state, "linear", shape)
        squares, updates = floats(state, "squares", shape, least=0.0), floats(state, "updates", shape, least=0.0)
        is_open = floats(state, "open", shape) != 0.0
        self.weights = np.maximum(weights, self.prior + self._lowest)
        self.squares, self.updates = np.minimum(squares, self.config.cap), updates
        self._linear, self._open = linear, is_open
