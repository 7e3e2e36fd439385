"""What a policy is: how far to draft, what to verify, what to learn; and the batch's best rows, which several share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from firesteel.errors import InvalidParameter
from firesteel.rounds import Draft, Plan, RoundReport, RoundView
from firesteel.tree import IntArray, TokenTree

MAX_WIDTH: Final = 64  # rows of one request's tree; the widest that AdaSpark measures (§3.2)


class Policy(Protocol):
    """The three verbs of a round. A policy sees views and trees, never a tensor or a request."""

    @property
    def name(self) -> str:
        """The name it is made by."""
        ...

    def plan(self, views: Sequence[RoundView]) -> Plan:
        """Before the draft: how far to draft each request. A drafter may give less than asked, never more."""
        ...

    def grow(
        self, views: Sequence[RoundView], plan: Plan, drafts: Sequence[Draft | None]
    ) -> tuple[list[TokenTree], list[TokenTree]]:
        """After the draft: all candidates, and the trees to verify, one of each per request.

        No tree is deeper than its view's room. The trees together have at most `plan.budget` rows, except that every
        request keeps its anchor.
        """
        ...

    def learn(self, report: RoundReport) -> None:
        """After the target: what the round taught."""
        ...

    def facts(self, report: RoundReport) -> dict[str, Any]:
        """What decided the round, as JSON values for its line of a trace; `{}` if there is nothing to say.

        Asked before `learn` and only if somebody listens. Changes nothing.
        """
        ...

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON values; `{}` is for policies that never learn, which nothing is kept of."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned.

        Raises:
            DamagedState: it is something else; the policy is as new then.
        """
        ...


class Untaught:
    """A policy that learns nothing: the last three methods of the protocol."""

    def learn(self, report: RoundReport) -> None:
        """Nothing."""

    def facts(self, report: RoundReport) -> dict[str, Any]:
        """Nothing."""
        return {}

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing."""


def check_width(width: int) -> None:
    """Raise `InvalidParameter` unless a tree may have this many rows."""
    if not 1 <= width <= MAX_WIDTH:
        raise InvalidParameter(f"width must be from 1 to {MAX_WIDTH} rows, got {width}")


def best_of_batch(trees: Sequence[TokenTree]) -> tuple[IntArray, IntArray, NDArray[np.float64]]:
    """The candidates of a whole batch in one best-first order (AdaSpark Prop. 1, read over the forest).

    Returns:
        `(owners, rows, Q)`, each of length N without the anchors: the tree, the row in it and its survival, by falling
        Q. Ties go to the earlier tree and then to the lower row, so that every prefix holds a tree of each request.
    """
    owners = np.concatenate([np.full(tree.width - 1, i, np.int64) for i, tree in enumerate(trees)])
    rows = np.concatenate([np.arange(1, tree.width, dtype=np.int64) for tree in trees])
    survival = np.concatenate([tree.survival[1:] for tree in trees])
    order = np.argsort(-survival, kind="stable")
    return owners[order], rows[order], survival[order]


def within(trees: list[TokenTree], budget: int | None) -> list[TokenTree]:
    """The trees cut to `budget` rows in all: the anchors, then the likeliest rows of the batch."""
    if budget is None or sum(tree.width for tree in trees) <= budget:
        return trees
    owners, rows, _ = best_of_batch(trees)
    kept = max(0, budget - len(trees))
    return [subtree(tree, rows[:kept][owners[:kept] == i]) for i, tree in enumerate(trees)]


def subtree(tree: TokenTree, rows: IntArray) -> TokenTree:
    """The anchor and the given rows, in row order."""
    return tree.take(np.concatenate([[0], np.sort(rows)]))
