"""What a model of acceptance is, and what a round teaches one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from firesteel.candidates import Candidates
from firesteel.tree import BoolArray, FloatArray, IntArray


class AcceptanceModel(Protocol):
    """Prices candidates before the tree is chosen, and learns from what the target said of them."""

    def price(self, candidates: Candidates) -> FloatArray:
        """`float64[N]` per row, the chance that it is accepted if its parent is; 1 for the anchor.

        Over all candidates of a parent, placed or not, so that it is fixed before the tree is chosen (AdaSpark
        Prop. 1). The children of one parent sum to at most 1. Changes nothing.
        """
        ...

    def learn(self, candidates: Candidates, kept: IntArray, wanted: IntArray) -> None:
        """Take in one round of one request. Only trees that were looked up: of a drawn one, `wanted` is no label.

        Args:
            candidates: as they were priced.
            kept: `int64[a]` the accepted rows, anchor first, by their numbers among the candidates.
            wanted: `int64[a]` the target's choice at each of them (`VerifyOutcome.wanted`).
        """
        ...

    def forget(self, request_id: str) -> None:
        """The request has ended: drop what was learned of it alone."""
        ...

    def state(self) -> dict[str, Any]:
        """What was learned over all requests, as JSON values."""
        ...

    def load(self, state: Any) -> None:
        """Take up what `state` returned.

        Raises:
            DamagedState: it is something else. The model then is at its prior.
        """
        ...


@dataclass(frozen=True, eq=False)
class Labels:
    """Every candidate of every accepted parent, and whether it was right.

    Fields:
        rows: `int64[n]` the candidates.
        families: `int64[n]` whose child each is, the accepted parents that have candidates numbered from 0.
        count: how many such parents there are.
        right: `bool[n]` whether it is what the target chose there; at most one of a family.
    """

    rows: IntArray
    families: IntArray
    count: int
    right: BoolArray


def labels_of(candidates: Candidates, kept: IntArray, wanted: IntArray) -> Labels:
    """Label the candidates of a round, placed or not (AdaSpark §3.3); arguments as of `AcceptanceModel.learn`."""
    tree = candidates.tree
    step = np.full(tree.width, -1, np.int64)  # when a row was accepted
    step[kept] = np.arange(len(kept))
    above = step[tree.parents]
    above[0] = -1
    rows = np.flatnonzero(above >= 0)
    steps = above[rows]
    # The path ends at its last row, and only there can an accepted row be without candidates.
    count = len(kept) - (not bool((steps == len(kept) - 1).any()))
    return Labels(rows, steps, count, tree.tokens[rows] == wanted[steps])
