"""Ratios of decode speed with intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def geometric_mean_interval(
    ratios: Sequence[float], groups: Sequence[str], *, draws: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Geometric mean of ratios, with a 95% bootstrap interval over groups (conversations).

    Args:
        ratios: one per reply, positive.
        groups: the conversation of each reply; the bootstrap draws whole conversations.

    Returns:
        mean, low, high.
    """
    logs = np.log(np.asarray(ratios))
    names, index = np.unique(np.asarray(groups), return_inverse=True)
    sums = np.bincount(index, logs, len(names))
    counts = np.bincount(index, minlength=len(names))
    drawn = np.random.default_rng(seed).integers(0, len(names), (draws, len(names)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def is_looped(tokens: Sequence[int], *, longest_period: int = 64, copies: int = 3, least: int = 48) -> bool:
    """Whether a reply ends in a repetition loop: its tail is at least `copies` copies of a period and `least` tokens.

    Small models decoded greedily fall into loops; a loop is easy to guess and would flatter every drafter.
    """
    reply = np.asarray(tokens)
    for period in range(1, longest_period + 1):
        tail = max(copies * period, least)
        if len(reply) >= tail and np.array_equal(reply[-tail + period :], reply[-tail:-period]):
            return True
    return False
