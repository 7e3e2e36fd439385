"""The engine: one target forward a round over the rows of every running request.

    plan ──> draft ──> grow ──> verify ──> commit ──> observe ──> learn
    how far  a block   which    one wide   tokens,    features    what the
    to       for each  rows to  pass of    K/V, stop  to the      round taught
    draft    request   verify   the target rules      drafter

One request is a batch of one, plain decoding is a tree of one row, and a prompt's chunk is a chain whose rows are all
kept: there is no second path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from firesteel.engine.drafter import Drafter, NoDrafter
from firesteel.engine.request import Request, Status
from firesteel.engine.scheduler import Batch, Scheduler
from firesteel.engine.stopwatch import Stopwatch
from firesteel.engine.verify import VerifyRequest, verify
from firesteel.models.rows import PackedRows, pack
from firesteel.models.target import Target, new_cache
from firesteel.policy import MAX_WIDTH, Policy
from firesteel.rounds import Draft, RoundReport
from firesteel.tree import Proposal, TokenTree


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Limits of the engine.

    Fields:
        slots: most requests that run together.
        cache_tokens: most tokens of K/V over all running requests; None for `slots` full contexts.
        chunk: most rows of one prefill forward.
    """

    slots: int = 16
    cache_tokens: int | None = None
    chunk: int = 512


@dataclass(frozen=True)
class Output:
    """What one round gave one request.

    Fields:
        request: the request itself, for its ids, logprobs, usage and statistics.
        tokens: the new token ids.
        text: the new text; the concatenation over all outputs is the reply.
        finished: whether this is its last output.
    """

    request: Request
    tokens: list[int]
    text: str
    finished: bool


class Engine:
    """Decodes any number of requests with one policy.

    Args:
        target: what verifies.
        policy: what decides how much to draft and to verify.
        drafter: what guesses blocks; without one, guesses come from each request's own text.
        vocab_size: tokens that exist; the target's head may be padded beyond it.
        record: called with every round's report, before the policy learns from it; what it takes belongs to no round.
        learned: called after every round that the policy learned from, with how many requests ended in it; what it
            takes belongs to no round.
    """

    def __init__(
        self,
        target: Target,
        policy: Policy,
        *,
        drafter: Drafter | None = None,
        config: EngineConfig = EngineConfig(),
        vocab_size: int | None = None,
        record: Callable[[RoundReport], None] | None = None,
        learned: Callable[[int], None] | None = None,
    ) -> None:
        self.target, self.policy, self.drafter = target, policy, drafter or NoDrafter()
        self.vocab_size = vocab_size or target.shape.vocab_size
        self.cache = new_cache(target, config.slots)
        self.scheduler = Scheduler(
            self.cache,
            cache_tokens=config.cache_tokens or config.slots * (target.shape.max_context + MAX_WIDTH),
            round_rows=MAX_WIDTH,
            chunk=config.chunk,
        )
        self.watch = Stopwatch()
        self.record = record or (lambda report: None)
        self._learned = learned or (lambda ended: None)

    @property
    def max_context(self) -> int:
        """Positions that one request's prompt and reply may take together."""
        return min(self.target.shape.max_context, self.scheduler.cache_tokens - MAX_WIDTH)

    def add(self, request: Request) -> None:
        """Queue a request; it joins at the next round.

        Raises:
            OutOfSlots: the cache cannot hold its prompt even when it is alone.
        """
        request.max_context = min(request.max_context, self.max_context)
        self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """End a request now; nobody else notices."""
        self.scheduler.abort(request)

    def run(self, requests: Iterable[Request]) -> Iterator[Output]:
        """Add the requests and yield outputs until all are finished."""
        for request in requests:
            self.add(request)
        while outputs := self.step():
            yield from outputs

    def step(self) -> list[Output]:
        """Prefill what was admitted, then one round: every running request commits at least one token.

        Returns:
            One output per running request; empty when nothing is left to do.
        """
        while (batch := self.scheduler.next_batch()) is not None:
            if batch.is_prefill:
                self._prefill(batch)
            else:
                return self._round(batch)
        return []

    def _prefill(self, batch: Batch) -> None:
        """Compute K/V of committed text. The anchor is left to the first round, so no logits are needed."""
        chunks = [
            TokenTree.chain(tokens[0], tokens[1:])
            for request, rows in zip(batch.requests, batch.chunks, strict=True)
            if (tokens := request.tokens(request.cached, request.cached + rows))
        ]
        none = torch.empty(0, dtype=torch.int64, device=self.target.device)
        _, features = self.target.forward(self._pack(batch, chunks), self.cache, keep=none)
        self._keep(batch, chunks, [np.arange(rows) for rows in batch.chunks], features)
        self.watch.restart()

    def _round(self, batch: Batch) -> list[Output]:
        requests, watch = batch.requests, self.watch
        first = self._begin(requests)
        views = [request.view() for request in requests]

        plan = self.policy.plan(views)  # how far to draft each request
        with watch("draft"):
            drafts = self.drafter.draft(requests, plan)  # one pass over all blocks
        candidates, trees = self.policy.grow(views, plan, drafts)
        with watch("verify"):
            logits, features = self.target.forward(self._pack(batch, trees), self.cache)
        facts = [_facts(*one, logits.device) for one in zip(requests, trees, drafts, strict=True)]
        verified = verify(trees, logits, facts, vocab_size=self.vocab_size)
        outcomes = [one.outcome for one in verified]

        self._keep(batch, trees, [outcome.path for outcome in outcomes], features)
        tokens = [
            request.commit(tree, one.outcome, one.logprobs)  # tokens, stop rules, n-gram index
            for request, tree, one in zip(requests, trees, verified, strict=True)
        ]
        outputs = [_output(request, new) for request, new in zip(requests, tokens, strict=True)]

        report = RoundReport(
            views=views,
            candidates=candidates,
            trees=trees,
            outcomes=outcomes,
            draft_ms=watch.ms("draft"),
            verify_ms=watch.ms("verify"),
            other_ms=watch.rest_ms(),
            rows=logits.shape[0],
            first=first,
        )
        watch.restart()  # learning from a round is part of the next one's cost
        with watch("record"):  # named, so that it is in no part of the next round's time
            self.record(report)
        self.policy.learn(report)
        self.scheduler.retire()
        with watch("store"):  # as above
            self._learned(sum(output.finished for output in outputs))
        return outputs

    def _begin(self, requests: list[Request]) -> bool:
        """Note which requests have their first round; whether there are any."""
        new = [request for request in requests if request.speculation.rounds == 0]
        for request in new:
            request.timing.decoding = time.perf_counter()
        if new:
            self.watch.restart()  # nothing that happened before belongs to this round
        return bool(new)

    def _pack(self, batch: Batch, trees: list[TokenTree]) -> PackedRows:
        slots = [request.slot for request in batch.requests]
        self.cache.reserve(slots, [tree.width for tree in trees])
        return pack(trees, slots, [request.cached for request in batch.requests], self.target.device)

    def _keep(self, batch: Batch, trees: list[TokenTree], paths: list[np.ndarray], features: torch.Tensor) -> None:
        """Keep the K/V of the accepted rows and show their features to the drafter."""
        self.cache.commit([request.slot for request in batch.requests], paths)
        kept, start = [], 0
        for request, tree, path in zip(batch.requests, trees, paths, strict=True):
            request.cached += len(path)
            if features.shape[-1]:
                whole = len(path) == len(features)  # the usual plain round: nothing is left out, so nothing is copied
                kept.append(features if whole else features[start + torch.as_tensor(path, device=features.device)])
            start += tree.width
        if kept:
            with self.watch("draft"):
                self.drafter.observe(batch.requests, kept)


def _facts(request: Request, tree: TokenTree, draft: Draft | None, device: torch.device) -> VerifyRequest:
    stop_ids = tuple(request.stop_ids)
    drafted = None
    if tree.proposal is Proposal.DRAWN and draft is not None:
        depths = tree.depths.tolist()
        drafted = lambda row: torch.from_numpy(draft.proposal(depths[row])).to(device)  # noqa: E731
    return VerifyRequest(request.params, request.seed, request.prompt, request.output, stop_ids, drafted)


def _output(request: Request, tokens: list[int]) -> Output:
    finished = request.status is Status.FINISHED
    if finished:
        request.text.close()
    return Output(request, tokens, request.text.delta(), finished)
