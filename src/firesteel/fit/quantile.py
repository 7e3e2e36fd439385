"""A low quantile of a time as a function of context (AdaSpark §3.2, Eq. 4).

Interference is one-sided: it makes a measurement slower and nothing makes it faster than it can be. So the quantile tau
of what is measured is the undisturbed time as long as more than a share tau of the measurements is undisturbed
(Prop. 3), where a mean absorbs every disturbance.

    v = y - theta . phi(u)      phi(u) = [1, u, u^2, sqrt u, ln(1 + u)]      u = context / unit
    loss(v) = v (tau - 1[v < 0])

The terms in context have non-negative weights, so a fitted time never falls as context grows. They are redundant on
purpose; the solver and the L2 term share a slope between them.

Not known here: what is timed, and in what units.
"""

from __future__ import annotations

from dataclasses import replace
from math import log1p, sqrt
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from firesteel.fit.ftrl import Ftrl, FtrlConfig
from firesteel.tree import BoolArray, FloatArray

TERMS: Final = 5
FLAT: Final = (1.0, 0.0, 0.0, 0.0, 0.0)  # the law that does not know of context yet, for times in units of its scale
IN_CONTEXT: Final = (False, True, True, True, True)  # which terms may not be negative


def pinball(v: ArrayLike, tau: float) -> FloatArray:
    """Loss of residuals v = measured - fitted, in their shape: its mean is least where v < 0 with probability tau."""
    v = np.asarray(v, np.float64)
    loss: FloatArray = v * (tau - (v < 0.0))
    return loss


def basis(context: ArrayLike, unit: float) -> FloatArray:
    """`float64[..., 5]` phi(context / unit), for contexts of 0 or more."""
    if isinstance(context, (int, float)):  # several times faster than arrays of one number
        u = context / unit
        return np.array((1.0, u, u * u, sqrt(u), log1p(u)))
    u = np.asarray(context, np.float64) / unit
    phi = np.empty((*u.shape, TERMS))
    phi[..., 0], phi[..., 1], phi[..., 2], phi[..., 3], phi[..., 4] = 1.0, u, u * u, np.sqrt(u), np.log1p(u)
    return phi


def context_law(solver: FtrlConfig) -> Ftrl:
    """A new law, flat at 1: the elastic net pulls to that, and not to no time at all (the paper does not say)."""
    return Ftrl(FLAT, solver, non_negative=IN_CONTEXT)


def step(law: Ftrl, phi: FloatArray, y: float, tau: float) -> None:
    """One online step on a measurement `y` where the basis is `phi` [5]."""
    below = y < float(phi @ law.weights)
    law.update((below - tau) * phi)


def refit(
    phi: FloatArray,  # [laws, samples, 5]
    y: FloatArray,  # [laws, samples]
    train: BoolArray,  # [laws, samples] which of them to fit
    start: FloatArray,  # [laws, 5]
    *,
    tau: float,
    solver: FtrlConfig,
    steps: int,
) -> FloatArray:
    """`float64[laws, 5]` laws fitted to stored samples: Eq. 4 as it stands, from a `start` and with fresh rates.

    Every step takes the gradient of the whole sum, so a law of few samples gets as many steps as one of many, no sample
    comes last, and all laws are fitted at once. The rate has no floor here: nothing drifts in a bank.
    """
    laws = Ftrl(np.tile(FLAT, (len(phi), 1)), replace(solver, cap=float("inf")), non_negative=IN_CONTEXT)
    laws.move(start)
    for _ in range(steps):
        below = y < (phi @ laws.weights[:, :, None])[:, :, 0]
        laws.update((((below - tau) * train)[:, None, :] @ phi)[:, 0, :])
    return laws.weights
