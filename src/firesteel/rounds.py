"""What passes between a round's stages: values without tensors, so that a policy runs without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from firesteel.errors import LosslessViolation
from firesteel.ngram import NgramIndex
from firesteel.tree import IntArray, TokenTree


class Draft(Protocol):
    """One request's block as a drafter guessed it: B positions, K ranked candidates each."""

    @property
    def anchor(self) -> int:
        """The newest committed token, under which the block hangs."""
        ...

    @property
    def top_tokens(self) -> IntArray:
        """`int64[B, K]` candidates by falling probability; column 0 is the pick."""
        ...

    @property
    def top_probs(self) -> NDArray[np.float64]:
        """`float64[B, K]` the drafter's probability of each, given the picks before it."""
        ...

    @property
    def head(self) -> NDArray[np.float64]:
        """`float64[B]` the drafter's chance that the target keeps each pick, if it keeps those before it.

        A confidence head says so. In a drafter without one the pick's own probability stands in: it is the drafter's
        guess at the target's probability of that token, which is the chance that a token drawn by the target is it.
        """
        ...

    @property
    def sampled(self) -> bool:
        """Whether the picks are draws, each from `proposal`, and not the likeliest tokens. K is 1 then."""
        ...

    def proposal(self, position: int) -> NDArray[np.float64]:
        """`float64[V]` what a sampled pick was drawn from, over the target's vocabulary; sampled drafts only."""
        ...


@dataclass(frozen=True)
class BlockDraft:
    """The plainest `Draft`: its arrays, nothing sampled. `confidence` is None without a confidence head."""

    anchor: int
    top_tokens: IntArray
    top_probs: NDArray[np.float64]
    confidence: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        assert self.top_tokens.shape == self.top_probs.shape, "one probability per candidate"
        assert self.top_tokens.ndim == 2, "B positions by K candidates"
        assert self.head.shape == self.top_tokens.shape[:1], "one confidence per position"

    @property
    def head(self) -> NDArray[np.float64]:
        """See `Draft.head`."""
        return self.top_probs[:, 0] if self.confidence is None else self.confidence

    @property
    def sampled(self) -> bool:
        """Never."""
        return False

    def proposal(self, position: int) -> NDArray[np.float64]:
        """See `Draft.proposal`."""
        raise LosslessViolation("looked-up picks were not drawn from anything")


@dataclass(frozen=True)
class RoundView:
    """All that a policy may know of a request: no tensors.

    Fields:
        request_id: the request's name.
        anchor: its newest committed token, not yet in the cache.
        context: tokens in the cache, which is also the anchor's position.
        temperature: 0 is greedy.
        room: how many drafted tokens the request can still use (limits on length and context).
        ngram: the request's own text, indexed.
    """

    request_id: str
    anchor: int
    context: int
    temperature: float
    room: int
    ngram: NgramIndex


@dataclass(frozen=True)
class Plan:
    """How far to draft each request, and how many rows the batch may verify.

    Fields:
        lengths: `int64[n]` positions to draft per request; 0 drafts nothing.
        budget: rows of the whole batch, or None for no limit.
        drawn: at T > 0, draft by drawing rather than by looking up: the policy will verify chains by rejection.
    """

    lengths: IntArray
    budget: int | None = None
    drawn: bool = False


@dataclass(frozen=True)
class VerifyOutcome:
    """What the target said of one tree.

    Fields:
        path: `int64[a]` rows kept, from the anchor (row 0, always kept) down.
        token: the token after them: the correction, or the bonus when a whole path was right.
        wanted: `int64[a]` the target's choice at each kept row; `wanted[-1] == token`.
    """

    path: IntArray
    token: int
    wanted: IntArray

    def __post_init__(self) -> None:
        assert len(self.path) == len(self.wanted) >= 1 and self.path[0] == 0, "a path starts at the anchor"
        assert int(self.wanted[-1]) == self.token, "the last choice is the committed token"


@dataclass(frozen=True)
class RoundReport:
    """One finished round: the input of `Policy.learn`, and one line of a trace.

    Fields:
        views, candidates, trees, outcomes: one per request of the batch; a tree is the verified part
            of the candidates.
        draft_ms, verify_ms, other_ms: wall time of the drafter, of the target's forward, and of everything else.
        rows: rows of the whole verify.
        first: whether a request's first round is in it (compilation, cold caches): not to be learned from as a cost.
    """

    views: list[RoundView]
    candidates: list[TokenTree]
    trees: list[TokenTree]
    outcomes: list[VerifyOutcome]
    draft_ms: float
    verify_ms: float
    other_ms: float
    rows: int
    first: bool
