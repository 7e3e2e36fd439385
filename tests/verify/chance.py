"""Every way the dice can fall, with its probability: exact laws without a single random number.

`outcomes(run)` calls `run(dice)` once per branch. The dice follow a script of choices and note every fork on the way;
each fork's other branches become scripts of their own. The code under test is the real rule, called as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np


class ScriptedDice:
    """A `Dice` that takes the branches of a script, then the first one at every further fork."""

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.forks: list[int] = []
        self.weight = 1.0

    def token(self, p: np.ndarray, depth: int = 0) -> int:
        weights = p.tolist()
        tokens = [token for token, weight in enumerate(weights) if weight > 0]
        total = sum(weights)
        return tokens[self._fork([weights[token] / total for token in tokens])]

    def accepts(self, probability: float, depth: int = 0, sibling: int = 0) -> bool:
        if probability >= 1:
            return True
        if probability <= 0:
            return False
        return self._fork([probability, 1 - probability]) == 0

    def _fork(self, weights: list[float]) -> int:
        step = len(self.taken)
        branch = self.script[step] if step < len(self.script) else 0
        self.taken.append(branch)
        self.forks.append(len(weights))
        self.weight *= weights[branch]
        return branch


def outcomes(run: Callable[[ScriptedDice], object]) -> Iterator[tuple[float, object]]:
    """(probability, result) of every branch of `run`; the probabilities sum to 1."""
    scripts: list[list[int]] = [[]]
    while scripts:
        dice = ScriptedDice(scripts.pop())
        result = run(dice)
        yield dice.weight, result
        for step in range(len(dice.script), len(dice.taken)):
            scripts += [[*dice.taken[:step], branch] for branch in range(1, dice.forks[step])]


def law(run: Callable[[ScriptedDice], object]) -> dict[object, float]:
    """result -> its exact probability."""
    total: dict[object, float] = defaultdict(float)
    for weight, result in outcomes(run):
        total[result] += weight
    return total


def distance(a: dict[object, float], b: dict[object, float]) -> float:
    """The largest difference of any probability."""
    return max(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in {*a, *b})
