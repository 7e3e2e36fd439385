"""The block drafters behind the engine's `Drafter`: one backbone pass a round, a context that grows with the text.

A request's context K/V live in the slot that its target K/V have. Features of committed tokens are taken as they are
seen, and become K/V before the next draft: while a policy rests from drafting, a token costs no more than keeping its
features. A context starts anew when features are seen from the first token on: another request took the slot, or a
preempted one is prefilled again. Tokens that were cached without their features being seen leave a gap, and
a gap cannot be told from bad luck: then nothing is drafted until the context is whole again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firesteel.engine.request import Request
from firesteel.models.drafters.blocks import Blocks, new_context_cache
from firesteel.models.drafters.model import DrafterModel
from firesteel.models.drafters.walk import likeliest
from firesteel.rounds import Draft, Plan
from firesteel.sampling import DRAFT_DRAW, draw, key_of, probabilities, scores
from firesteel.tree import FloatArray, IntArray

MOST_WAITING = 512  # tokens of one request whose features are kept before they become K/V


@dataclass(frozen=True, eq=False)
class BlockRows:
    """One block's rows after the backbone's pass: all that is needed to say what follows any token at any position.

    Fields:
        base: `[B, draft_vocab]` base logits; h: `[B, H]` states.
        memory: `[B, r]` what a recurrent Markov head remembers of the spine before each position, or None.
        heat: temperature of the probabilities.
        count: K, how many of the likeliest tokens are told.
    """

    model: DrafterModel
    base: Tensor
    h: Tensor
    memory: Tensor | None
    heat: float
    count: int

    @torch.inference_mode()
    def children(self, positions: IntArray, parents: IntArray) -> tuple[IntArray, NDArray[np.float64]]:
        """The likeliest tokens at `positions` [n] after the concrete tokens `parents` [n], and their probabilities.

        One row of W1 and one product with W2 for each, no pass of the backbone. Returns `int64[n, K]`, `float64[n, K]`.
        A recurrent head's memory is that of the spine: another branch's own is not followed.
        """
        rows = torch.as_tensor(positions, device=self.base.device)
        before = torch.as_tensor(parents, device=self.base.device)
        memory = None if self.memory is None else self.memory[rows]
        logits = self.model.conditional(self.base[rows], self.h[rows], before, memory)[0]
        top, probs = likeliest(logits, self.heat, self.count)
        return self.model.target_ids(top).cpu().numpy(), probs.double().cpu().numpy()


@dataclass(frozen=True, eq=False)
class SpineDraft:
    """A drafted block: the spine of picks and, where these are the likeliest tokens, their siblings.

    Fields:
        anchor, top_tokens, top_probs: see `firesteel.rounds.Draft`.
        drawn_from: of a sampled spine, `float64[B, draft_vocab]` what each pick was drawn from; else None.
        kept: `int64[draft_vocab]` target id of each draft id; None for the identity.
        vocab_size: the target's logical vocabulary.
        confidence: `float64[B]` the confidence head's chance of each pick, if those before it are accepted; None
            without such a head.
        block: what follows tokens that are not on the spine.
    """

    anchor: int
    top_tokens: IntArray
    top_probs: NDArray[np.float64]
    drawn_from: FloatArray | None
    kept: IntArray | None
    vocab_size: int
    confidence: NDArray[np.float64] | None
    block: BlockRows

    @property
    def head(self) -> NDArray[np.float64]:
        """See `firesteel.rounds.Draft`."""
        return self.top_probs[:, 0] if self.confidence is None else self.confidence

    @property
    def sampled(self) -> bool:
        """See `firesteel.rounds.Draft`."""
        return self.drawn_from is not None

    def proposal(self, position: int) -> FloatArray:
        """See `firesteel.rounds.Draft`."""
        assert self.drawn_from is not None, "looked-up picks have no distribution they were drawn from"
        if self.kept is None:
            return self.drawn_from[position]
        whole = np.zeros(self.vocab_size)
        whole[self.kept] = self.drawn_from[position]
        return whole


class BlockDrafter:
    """DFlash, DSpark and DFlash 2 as a `Drafter`.

    Args:
        model: with its embedding and head.
        blocks: its backbone pass.
        slots: of the target's cache.
        vocab_size: the target's logical vocabulary.
        cache_dtype: of the context K/V.
        siblings: K, candidates per position.
        pick: draws the k-th token of a sampled spine from q `[draft_vocab]`; tests script it.
    """

    def __init__(
        self,
        model: DrafterModel,
        blocks: Blocks,
        *,
        slots: int,
        vocab_size: int,
        cache_dtype: torch.dtype = torch.float32,
        siblings: int = 8,
        pick: Callable[[FloatArray, Request, int], int] | None = None,
    ) -> None:
        self._pick = pick or keyed_pick
        self.model, self._blocks, self._vocab_size, self._siblings = model, blocks, vocab_size, siblings
        self.name = model.config.kind
        self._cache = new_context_cache(model, slots, cache_dtype, model.fc.weight.device)
        self._owners: list[str | None] = [None] * slots
        self._waiting: list[list[Tensor]] = [[] for _ in range(slots)]  # features that are not K/V yet
        self._counts = [0] * slots  # of their tokens
        self._kept = None if model.kept is None else model.kept.cpu().numpy()

    def observe(self, requests: Sequence[Request], features: Sequence[Tensor]) -> None:
        """See `Drafter.observe`."""
        for request, rows in zip(requests, features, strict=True):
            slot, start = request.slot, request.cached - len(rows)
            if start == 0:
                self._start(slot, request.id)
            if self._owners[slot] == request.id and self._seen(slot) == start:
                self._waiting[slot].append(rows)
                self._counts[slot] += len(rows)
                if self._counts[slot] >= MOST_WAITING:
                    self._append([slot])

    def _start(self, slot: int, owner: str) -> None:
        self._owners[slot], self._cache.lengths[slot] = owner, 0
        self._waiting[slot].clear()
        self._counts[slot] = 0

    def _seen(self, slot: int) -> int:
        """Tokens of a slot's request whose features were seen."""
        return self._cache.lengths[slot] + self._counts[slot]

    def _append(self, slots: Sequence[int]) -> None:
        """Turn the waiting features of slots into K/V, in one pass."""
        slots = [slot for slot in slots if self._waiting[slot]]
        if slots:
            self._blocks.append([torch.cat(self._waiting[slot]) for slot in slots], slots, self._cache)
        for slot in slots:
            self._waiting[slot].clear()
            self._counts[slot] = 0

    def draft(self, requests: Sequence[Request], plan: Plan) -> Sequence[Draft | None]:
        """See `Drafter.draft`."""
        lengths = np.array([self._length(request, int(n)) for request, n in zip(requests, plan.lengths, strict=True)])
        if not lengths.any():
            return [None] * len(requests)
        drafted = [request for request, length in zip(requests, lengths, strict=True) if length]
        made = iter(self._draft(drafted, lengths[lengths > 0], plan.drawn))
        return [next(made) if length else None for length in lengths]

    def _length(self, request: Request, asked: int) -> int:
        """Tokens to draft: at most a trained block, and none where the context is not whole or too long."""
        slot, config = request.slot, self.model.config
        if request.cached == 0:  # a prompt of one token: nothing was there to be seen
            self._start(slot, request.id)
        if self._owners[slot] != request.id or self._seen(slot) != request.cached:
            return 0
        if config.max_context is not None and request.cached + config.block_size > config.max_context:
            return 0
        return min(asked, config.drafts)

    @torch.inference_mode()
    def _draft(self, requests: list[Request], lengths: IntArray, drawn: bool) -> list[SpineDraft]:
        slots, anchors = [request.slot for request in requests], [request.anchor for request in requests]
        self._append(slots)
        unused = 0 if self.model.config.anchor_first else 1  # in place, the anchor's row predicts nothing
        widths = lengths + unused
        starts = np.cumsum(widths) - widths + unused
        base, h = self._blocks(anchors, widths.tolist(), slots, self._cache)
        if self._kept is None:
            base = base[:, : self._vocab_size]  # a padded head may be wider
        sampled = [drawn and not request.params.is_greedy for request in requests]
        drawn_from = [np.zeros((n, base.shape[1])) if s else None for n, s in zip(lengths, sampled, strict=True)]

        def choose(block: int, k: int, logits: Tensor) -> int | None:
            if (q := drawn_from[block]) is None:
                return None
            q[k] = probabilities(scores(logits.cpu().numpy(), requests[block].params))
            return self._pick(q[k], requests[block], k)

        heats = [1.0 if request.params.is_greedy else request.params.temperature for request in requests]
        walked = self._blocks.walk(
            base, h, anchors, starts, lengths, heats, self._siblings, choose if any(sampled) else None
        )
        top, probs = self.model.target_ids(walked.top).cpu().numpy(), walked.probs.double().cpu().numpy()
        confidence = self._confidence(h, walked.before)
        drafts = []
        for i, request in enumerate(requests):
            rows = slice(int(starts[i]), int(starts[i] + lengths[i]))
            block = BlockRows(
                self.model,
                base[rows],
                h[rows],
                None if walked.states is None else walked.states[rows],
                heats[i],
                self._siblings,
            )
            tokens, chances = top[rows], probs[rows]
            if (q := drawn_from[i]) is not None:
                picks = walked.picks[rows]
                tokens = self.model.target_ids(picks).cpu().numpy()[:, None]
                chances = np.take_along_axis(q, picks.cpu().numpy()[:, None], axis=1)
            sure = None if confidence is None else confidence[rows]
            drafts.append(SpineDraft(request.anchor, tokens, chances, q, self._kept, self._vocab_size, sure, block))
        return drafts

    def _confidence(self, h: Tensor, before: Tensor) -> NDArray[np.float64] | None:
        """The confidence head's number for every row."""
        head, markov = self.model.confidence_head, self.model.markov_head
        if head is None:
            return None
        logits = head(h, markov.embed(before) if head.with_markov and markov is not None else None)
        return torch.sigmoid(logits).double().cpu().numpy()


def keyed_pick(q: FloatArray, request: Request, k: int) -> int:
    """The k-th pick of a request's block, a draw from q keyed by its position, as all draws are.

    A position is drawn again in a later round only where the earlier draw was never looked at: it stood below a
    rejected one.
    """
    assert request.seed is not None
    return draw(q, key_of(request.seed, len(request.output) + k, DRAFT_DRAW))
