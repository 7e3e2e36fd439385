"""How good probabilities are against what happened."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def brier(p: ArrayLike, y: ArrayLike) -> float:
    """Mean squared difference of probabilities p [n] and outcomes y [n] (0 or 1); n >= 1."""
    return float(np.mean((np.asarray(p, np.float64) - np.asarray(y, np.float64)) ** 2))


def ece(p: ArrayLike, y: ArrayLike, bins: int = 20) -> float:
    """Expected calibration error: |mean p - mean y| of equally wide bins, weighted by how many fall in; n >= 1."""
    p, y = np.asarray(p, np.float64), np.asarray(y, np.float64)
    bin_of = np.minimum((p * bins).astype(np.int64), bins - 1)
    difference = np.bincount(bin_of, weights=p - y, minlength=bins)
    return float(np.abs(difference).sum() / len(p))


def auc(p: ArrayLike, y: ArrayLike) -> float | None:
    """The chance that a random 1 has a higher p than a random 0, ties counting half; None without both of them."""
    p, y = np.asarray(p, np.float64), np.asarray(y, np.bool_)
    ones, zeros = int(y.sum()), int((~y).sum())
    if not ones or not zeros:
        return None
    _, where, counts = np.unique(p, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[where]  # of equal p, the mean rank
    return float((ranks[y].sum() - ones * (ones + 1) / 2) / (ones * zeros))
