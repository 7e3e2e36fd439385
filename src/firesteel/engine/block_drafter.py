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
from firesteel.rounds import Draft, Plan
from firesteel.sampling import DRAFT_DRAW, draw, key_of, probabilities, scores
from firesteel.tree import FloatArray, IntArray


MOST_WAITING = 512  # tokens of one request whose features are kept before they become K/V


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
    """

    anchor: int
    top_tokens: IntArray
    top_probs: NDArray[np.float64]
    drawn_from: FloatArray | None
    kept: IntArray | None
    vocab_size: int
    confidence: NDArray[np.float64] | None

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
        self._kept = None if model.kept is None else model.kept.cpu().numpy()

    def observe(self, requests: Sequence[Request], features: Sequence[Tensor]) -> None:
        """See `Drafter.observe`."""
        for request, rows in zip(requests, features, strict=True):
            slot, start = request.slot, request.cached - len(rows)
            if start == 0:
                self._start(slot, request.id)
            if self._owners[slot] == request.id and self._seen(slot) == start:
                self._waiting[slot].append(rows)
                if sum(map(len, self._waiting[slot])) >= MOST_WAITING:
                    self._append([slot])

    def _start(self, slot: int, owner: str) -> None:
        self._owners[slot], self._cache.lengths[slot] = owner, 0
        self._waiting[slot].clear()

    def _seen(self, slot: int) -> int:
        """Tokens of a slot's request whose features were seen."""
        return self._cache.lengths[slot] + sum(map(len, self._waiting[slot]))

    def _append(self, slots: Sequence[int]) -> None:
        """Turn the waiting features of slots into K/V, in one pass."""
        slots = [slot for slot in slots if self._waiting[slot]]
        if slots:
            self._blocks.append([torch.cat(self._waiting[slot]) for slot in slots], slots, self._cache)
        for slot in slots:
            self._waiting[slot].clear()

    def draft(self, requests: Sequence[Request], plan: Plan) -> Sequence[Draft | None]:
        """See `Drafter.draft`."""
        lengths = [self._length(request, int(n)) for request, n in zip(requests, plan.lengths, strict=True)]
        drafted = [(request, length) for request, length in zip(requests, lengths, strict=True) if length]
        made = iter(self._draft([r for r, _ in drafted], [n for _, n in drafted], plan.drawn) if drafted else ())
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
    def _draft(self, requests: list[Request], lengths: list[int], drawn: bool) -> list[SpineDraft]:
        self._append([request.slot for request in requests])
        unused = 0 if self.model.config.anchor_first else 1  # in place, the anchor's row predicts nothing
        widths = np.array(lengths) + unused
        starts = np.cumsum(widths) - widths + unused  # the first predicting row of each block
        base, h = self._blocks(
            [request.anchor for request in requests], widths.tolist(), [r.slot for r in requests], self._cache
        )
        if self._kept is None:
            base = base[:, : self._vocab_size]  # a padded head may be wider
        sampled = [drawn and not request.params.is_greedy for request in requests]
        logits = torch.empty_like(base)
        picks = np.zeros((len(requests), max(lengths)), np.int64)  # draft ids
        drawn_from = [
            np.zeros((length, base.shape[1])) if s else None for length, s in zip(lengths, sampled, strict=True)
        ]
        befores = torch.zeros(len(h), dtype=torch.int64, device=base.device)  # the token before each predicted one
        before = torch.tensor([request.anchor for request in requests], device=base.device)
        state = None
        for k in range(max(lengths)):
            # Finished blocks stay in the batch, at their last row, so that no state has to be taken apart.
            rows = torch.as_tensor(starts + np.minimum(k, np.array(lengths) - 1), device=base.device)
            befores[rows] = before
            logit, state = self.model.conditional(base[rows], h[rows], before, state)
            best = logit.argmax(-1).tolist()
            for i, (request, length) in enumerate(zip(requests, lengths, strict=True)):
                if k >= length:
                    continue
                if (q := drawn_from[i]) is not None:
                    q[k] = probabilities(scores(logit[i].cpu().numpy(), request.params))
                    best[i] = self._pick(q[k], request, k)
                picks[i, k] = best[i]
                logits[int(starts[i]) + k] = logit[i]
            before = self.model.target_ids(torch.tensor(best, device=base.device))
        confidence = self._confidence(h, befores)
        spans = [slice(int(start), int(start) + length) for start, length in zip(starts, lengths, strict=True)]
        return [
            self._spine(
                request,
                logits[span],
                picks[i, : lengths[i]],
                drawn_from[i],
                None if confidence is None else confidence[span],
            )
            for i, (request, span) in enumerate(zip(requests, spans, strict=True))
        ]

    def _confidence(self, h: Tensor, before: Tensor) -> NDArray[np.float64] | None:
        """The confidence head's number for every row."""
        head, markov = self.model.confidence_head, self.model.markov_head
        if head is None:
            return None
        logits = head(h, markov.embed(before) if head.with_markov and markov is not None else None)
        return torch.sigmoid(logits).double().cpu().numpy()

    def _spine(
        self,
        request: Request,
        logits: Tensor,  # [B, draft_vocab]
        picks: IntArray,  # [B] draft ids
        drawn_from: FloatArray | None,
        confidence: NDArray[np.float64] | None,
    ) -> SpineDraft:
        if drawn_from is not None:
            ids, probs = picks[:, None], np.take_along_axis(drawn_from, picks[:, None], axis=1)
        else:
            heat = 1.0 if request.params.is_greedy else request.params.temperature
            top = logits.topk(min(self._siblings, logits.shape[1]))
            weights = (top.values / heat - (logits / heat).logsumexp(-1, keepdim=True)).exp()
            ids, probs = top.indices.cpu().numpy(), weights.double().cpu().numpy()
        tokens = ids if self._kept is None else self._kept[ids]
        return SpineDraft(request.anchor, tokens, probs, drawn_from, self._kept, self._vocab_size, confidence)


def keyed_pick(q: FloatArray, request: Request, k: int) -> int:
    """The k-th pick of a request's block, a draw from q keyed by its position, as all draws are.

    A position is drawn again in a later round only where the earlier draw was never looked at: it stood below a
    rejected one.
    """
    assert request.seed is not None
    return draw(q, key_of(request.seed, len(request.output) + k, DRAFT_DRAW))
