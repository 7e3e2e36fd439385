"""Drafters: what guesses blocks. The seam, and two scripted ones for tests and for finding faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from firesteel.engine.request import Request
from firesteel.rounds import BlockDraft, Draft, Plan


class Drafter(Protocol):
    """Guesses a block for each request of a batch."""

    name: str

    def draft(self, requests: Sequence[Request], plan: Plan) -> Sequence[Draft | None]:
        """One draft per request; None where nothing is drafted."""
        ...

    def observe(self, requests: Sequence[Request], features: Sequence[Tensor]) -> None:
        """See the features [a, F] of each request's newly cached tokens, the last a of `request.cached`."""
        ...


class NoDrafter:
    """Drafts nothing: speculation comes from the request's own text alone."""

    name = "ngram"

    def draft(self, requests: Sequence[Request], plan: Plan) -> Sequence[Draft | None]:
        """See `Drafter.draft`."""
        return [None] * len(requests)

    def observe(self, requests: Sequence[Request], features: Sequence[Tensor]) -> None:
        """See `Drafter.observe`."""


class Replay:
    """Proposes scripted replies: a perfect drafter, for tests of what accepts.

    Args:
        scripts: request id -> the tokens of its reply.
        vocab_size: of the target; siblings are other tokens below it.
        block: positions per draft.
        k: candidates per position.
        rank: column of the scripted token; 0 makes it the pick, more hides it among the siblings.
    """

    name = "replay"

    def __init__(
        self, scripts: Mapping[str, Sequence[int]], vocab_size: int, *, block: int = 7, k: int = 4, rank: int = 0
    ) -> None:
        self._scripts, self._vocab_size = scripts, vocab_size
        self._block, self._k, self._rank = block, k, rank

    def draft(self, requests: Sequence[Request], plan: Plan) -> Sequence[Draft | None]:
        """See `Drafter.draft`."""
        return [self._one(request, int(length)) for request, length in zip(requests, plan.lengths, strict=True)]

    def observe(self, requests: Sequence[Request], features: Sequence[Tensor]) -> None:
        """See `Drafter.observe`."""

    def _one(self, request: Request, length: int) -> Draft | None:
        done = len(request.output)
        script = np.asarray(self._scripts[request.id][done : done + min(length, self._block)], np.int64)
        if len(script) == 0:
            return None
        # The scripted token's K - 1 neighbours in the vocabulary are the other candidates.
        offsets = np.arange(self._k)
        offsets[[0, self._rank]] = offsets[[self._rank, 0]]
        tokens = (script[:, None] + self._shift(offsets)) % self._vocab_size
        probs = np.full(tokens.shape, 0.05)
        probs[:, 0] = 0.8
        return BlockDraft(request.anchor, tokens, probs)

    def _shift(self, offsets: np.ndarray) -> np.ndarray:
        return offsets


class Adversary(Replay):
    """Always proposes tokens that the target does not choose: the worst drafter, for tests of what must not break."""

    name = "adversary"

    def _shift(self, offsets: np.ndarray) -> np.ndarray:
        return offsets + 1
