"""A keyed draw from weights: an exponential race, run only where it can be won.

Token v arrives at time E_v / w_v with E_v ~ Exp(1), and the first to arrive is v with probability w_v / sum(w). Every
E_v depends on (key, v) alone, so that rounding in the weights turns a draw only where two tokens arrive together: as
rarely as it turns an argmax. (The inverse of a cumulative sum has a boundary at every token of the vocabulary, and all
of them move.)

Most tokens have no chance, and their noise is not made. Tokens run in heats of 64, whose E are built from the front:

    E = first + Y - min(Y)      first ~ Exp(1) / 64, Y ~ Exp(1) for each of the 64

This is the law of 64 independent Exp(1). Their minimum is Exp(1) / 64, and given it the others exceed it by Exp(1)
each, independently, because an exponential has no memory; for the same reason Y - min(Y) is 0 for one of the 64, all
equally likely, and Exp(1) for the others, whatever min(Y) was. Since E >= first, nobody in a heat arrives before its
`first` over its largest weight: heats that are later than a known arrival are left out, and the winner is the same.

The numbers are SplitMix64's (Steele, Lea and Flood 2014), which can be entered anywhere. Integers are the same on every
platform; a logarithm may differ in its last bit, and that too matters only where two tokens arrive together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from firesteel.tree import FloatArray, IntArray

HEAT = 64
_NEAR = 16  # heats run at once, those that may be the quickest: nearly always enough for all that can win


def race(best: FloatArray, weights: Callable[[IntArray], FloatArray], key: int) -> int:
    """The token that wins: token i * heats + j is runner i of heat j.

    Args:
        best: float64 [heats], the largest weight of each heat; not all of them 0.
        weights: heats [n] -> float64 [HEAT, n], the weights of their runners, at least 0; a weight of 0 never wins.
        key: 64 bits; draws with different keys are independent.
    """
    heats = len(best)
    first = _first(key, heats)
    bound = best / first

    def fastest(some: IntArray) -> tuple[float, int]:
        speed = weights(some) / (first[some] + _excess(key, some, heats))
        i, j = divmod(int(speed.argmax()), len(some))
        return float(speed[i, j]), i * heats + int(some[j])

    near = np.argpartition(bound, -_NEAR)[-_NEAR:] if heats > _NEAR else np.arange(heats)
    winner = fastest(near)
    bound[near] = 0
    others = np.flatnonzero(bound > winner[0])
    return max(winner, fastest(others))[1] if len(others) else winner[1]


def _first(key: int, heats: int) -> FloatArray:
    """float64 [heats]: the smallest E of each heat."""
    return _exponential(key, np.arange(heats, dtype=np.uint64)) / HEAT


def _excess(key: int, some: IntArray, heats: int) -> FloatArray:
    """float64 [HEAT, n]: by how much the E of each runner exceeds its heat's smallest, for `some` [n] of the heats."""
    runners = np.arange(1, HEAT + 1, dtype=np.uint64)[:, None]
    y = _exponential(key, runners * np.uint64(heats) + some.astype(np.uint64))
    y -= y.min(axis=0)
    return y


def _exponential(key: int, index: NDArray[np.uint64]) -> FloatArray:
    """Exp(1) numbers, above 0: from 52 bits each."""
    u = (_splitmix64(key, index) >> np.uint64(12)).astype(np.float64)
    u += 0.5
    u *= 2.0**-52
    return -np.log(u)


def _splitmix64(key: int, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The outputs number `index`, from 0, of SplitMix64 seeded with `key`."""
    z = index * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64((key + 0x9E3779B97F4A7C15) % 2**64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z
