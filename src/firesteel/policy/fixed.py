"""The baselines: no speculation, a chain of fixed width, a tree of fixed width. A width of 1 is no speculation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from firesteel.candidates import Candidates, candidates
from firesteel.policy.base import Untaught, check_width, within
from firesteel.rounds import Draft, Plan, RoundView
from firesteel.tree import Proposal, TokenTree


@dataclass(frozen=True, kw_only=True)
class FixedConfig:
    """Rows of every verify of one request, the anchor included: 1 to 64.

    Raises:
        InvalidParameter: the width is out of range.
    """

    width: int = 8

    def __post_init__(self) -> None:
        check_width(self.width)


class Off(Untaught):
    """One row per request: plain decoding through the same path."""

    name: Final = "off"

    def plan(self, views: Sequence[RoundView]) -> Plan:
        """Draft nothing."""
        return Plan(np.zeros(len(views), np.int64))

    def grow(
        self, views: Sequence[RoundView], plan: Plan, drafts: Sequence[Draft | None]
    ) -> tuple[list[TokenTree], list[TokenTree]]:
        """Anchors alone."""
        trees = [TokenTree.root(view.anchor) for view in views]
        return trees, trees


class _Fixed(Untaught):
    """What the fixed chain and the fixed tree share: everything but the choice of rows."""

    draws = False  # whether drafters should draw their picks at T > 0

    def __init__(self, config: FixedConfig = FixedConfig()) -> None:
        self.config = config

    def plan(self, views: Sequence[RoundView]) -> Plan:
        """Draft no further than a chain of this width reaches."""
        lengths = np.array([max(0, min(view.room, self.config.width - 1)) for view in views], np.int64)
        return Plan(lengths, drawn=self.draws)

    def grow(
        self, views: Sequence[RoundView], plan: Plan, drafts: Sequence[Draft | None]
    ) -> tuple[list[TokenTree], list[TokenTree]]:
        """All candidates, and of each request the chosen rows, within the plan's budget."""
        if self.config.width == 1:
            return Off().grow(views, plan, drafts)
        both = [self._one(view, draft) for view, draft in zip(views, drafts, strict=True)]
        return [grown for grown, _ in both], within([chosen for _, chosen in both], plan.budget)

    def _one(self, view: RoundView, draft: Draft | None) -> tuple[TokenTree, TokenTree]:
        """All candidates of one request, and the rows chosen of them."""
        if draft is not None and draft.sampled:
            # How many draws are verified is decided by the width alone, never by which tokens came.
            drawn = drawn_chain(draft, min(view.room, self.config.width - 1))
            return drawn, drawn
        grown = candidates(view, draft)
        return grown.tree, self.choose(grown)

    def choose(self, grown: Candidates) -> TokenTree:
        """The rows to verify."""
        raise NotImplementedError


class FixedChain(_Fixed):
    """The first `width` rows of the main line: the drafter's picks, then the n-gram chain below the last of them.

    At T > 0 a drafter draws its picks, and the chain is verified by rejection; there n-grams have no part in it.
    """

    name: Final = "chain"
    draws = True

    def choose(self, grown: Candidates) -> TokenTree:
        """The head of the main line."""
        return grown.tree.take(grown.line[: self.config.width])


class FixedTree(_Fixed):
    """The `width` likeliest rows (AdaSpark Prop. 1 at one width)."""

    name: Final = "tree"

    def choose(self, grown: Candidates) -> TokenTree:
        """The best-first prefix."""
        return grown.tree.prefix(self.config.width)


def drawn_chain(draft: Draft, length: int) -> TokenTree:
    """The first `length` picks of a sampled draft: a chain of genuine draws, which only rejection verifies."""
    tokens, q = draft.top_tokens[:length, 0], draft.top_probs[:length, 0]
    return TokenTree.chain(draft.anchor, tokens.tolist(), q=q, proposal=Proposal.DRAWN)
