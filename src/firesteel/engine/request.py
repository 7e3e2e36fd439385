"""One request: its text, its limits, its statistics. No torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from firesteel.ngram import NgramIndex
from firesteel.rounds import RoundView, VerifyOutcome
from firesteel.sampling import SamplingParams, TokenLogprob, fresh_seed
from firesteel.tree import TokenTree


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class TextSink(Protocol):
    """Turns committed tokens into text; see `firesteel.engine.text.TextStream`."""

    text: str

    def push(self, token: int) -> bool:
        """Take one token; True when a stop string is complete."""
        ...

    def close(self) -> None:
        """No more tokens come."""
        ...

    def delta(self) -> str:
        """Text that is new since the last call."""
        ...


@dataclass
class Speculation:
    """What speculation did for one request.

    `accepted + rejected == offered == sum over rounds of (width - 1)`.
    """

    rounds: int = 0
    offered: int = 0
    accepted: int = 0
    rows: int = 0

    def count(self, tree: TokenTree, outcome: VerifyOutcome) -> None:
        """Add one round."""
        self.rounds += 1
        self.rows += tree.width
        self.offered += tree.width - 1
        self.accepted += len(outcome.path) - 1


@dataclass
class Timing:
    """Wall clock of one request, in seconds since an arbitrary start; 0 where it has not happened yet."""

    added: float = field(default_factory=time.perf_counter)
    decoding: float = 0.0  # its prefill was done and its first round began
    finished: float = 0.0

    @property
    def prefill_s(self) -> float:
        """Seconds from its arrival to its first round."""
        return self.decoding - self.added

    @property
    def decode_s(self) -> float:
        """Seconds from its first round to its end."""
        return self.finished - self.decoding


@dataclass(eq=False)
class Request:
    """A prompt and what has been made of it.

    Fields:
        id: unique name.
        prompt: token ids, at least one.
        params: sampling parameters.
        stop_ids: tokens that end the reply (empty with `ignore_eos`); `params.stop_token_ids` are added.
        max_context: positions that prompt and reply may take together.
        text: the sink that decodes the reply.
        seed: of its draws; a request without one gets a random one, so that unseeded requests differ.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    stop_ids: frozenset[int]
    max_context: int
    text: TextSink
    seed: int | None = None
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    status: Status = Status.WAITING
    finish_reason: str | None = None
    slot: int = -1
    cached: int = 0  # tokens whose K/V is in the cache
    speculation: Speculation = field(default_factory=Speculation)
    timing: Timing = field(default_factory=Timing)
    ngram: NgramIndex = field(init=False)

    def __post_init__(self) -> None:
        assert self.prompt, "a prompt has at least one token"
        self.ngram = NgramIndex(self.prompt)
        if self.params.ignore_eos:
            self.stop_ids = frozenset(self.params.stop_token_ids)
        else:
            self.stop_ids = self.stop_ids | set(self.params.stop_token_ids)
        if self.seed is None:
            self.seed = fresh_seed() if self.params.seed is None else self.params.seed

    @property
    def length(self) -> int:
        """Tokens of prompt and reply."""
        return len(self.prompt) + len(self.output)

    @property
    def anchor(self) -> int:
        """The newest committed token."""
        return self.output[-1] if self.output else self.prompt[-1]

    @property
    def to_prefill(self) -> int:
        """Committed tokens below the anchor that the cache does not hold yet."""
        return self.length - 1 - self.cached

    @property
    def room(self) -> int:
        """Drafted tokens that may still be of use: one more token always follows the accepted ones."""
        by_limit = self.params.max_tokens - len(self.output)
        by_context = self.max_context - self.length
        return max(0, min(by_limit, by_context) - 1)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Committed tokens start..stop-1, prompt and reply as one text."""
        cut = len(self.prompt)
        if stop <= cut:
            return self.prompt[start:stop]
        return self.prompt[start:cut] + self.output[max(0, start - cut) : stop - cut]

    def view(self) -> RoundView:
        """What a policy may know."""
        return RoundView(
            request_id=self.id,
            anchor=self.anchor,
            context=self.cached,
            temperature=self.params.temperature,
            room=self.room,
            ngram=self.ngram,
        )

    def commit(self, tree: TokenTree, outcome: VerifyOutcome, logprobs: Sequence[TokenLogprob] | None) -> list[int]:
        """Take a round's tokens up to the first stop; returns those taken.

        The order of the checks is fixed: a stop inside an accepted block comes before the limit, and nothing after it
        is delivered.
        """
        self.speculation.count(tree, outcome)
        new = [int(token) for token in tree.tokens[outcome.path[1:]]] + [outcome.token]
        taken: list[int] = []
        for i, token in enumerate(new):
            self.output.append(token)
            taken.append(token)
            if logprobs is not None:
                self.logprobs.append(logprobs[i])
            if self._finished_by(token):
                break
        self.ngram.extend(taken)
        return taken

    def _finished_by(self, token: int) -> bool:
        enough = len(self.output) >= self.params.min_tokens
        if (token in self.stop_ids and enough) or (self.text.push(token) and enough):
            self.finish("stop")
        elif len(self.output) >= self.params.max_tokens or self.length >= self.max_context:
            self.finish("length")
        return self.status is Status.FINISHED

    def finish(self, reason: str) -> None:
        """End the request; its slot is given back by the scheduler."""
        self.status = Status.FINISHED
        self.finish_reason = reason
        self.timing.finished = time.perf_counter()
