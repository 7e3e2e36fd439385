"""Many conversations at once, as a stream: whenever one ends, the next begins, so that a batch stays full.

A conversation in the making is a generator, a `Talk`: it yields what it wants to be written next and gets the answer.

    talk ── Ask ──> decoder ── Answer ──> talk ── ... ──> [Conversation]
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from firesteel.engine.engine import EngineConfig
from firesteel.model import Model
from firesteel.sampling import SamplingParams
from firesteel.train.chat import Message
from firesteel.train.conversations import Conversation


@dataclass(frozen=True)
class Ask:
    """A text to be continued.

    Fields:
        ids: its token ids, template and all.
        params: how; with a seed of its own, so that an answer does not depend on what runs beside it.
        messages: the same as messages, when it is a reply that is wanted.
    """

    ids: Sequence[int]
    params: SamplingParams
    messages: Sequence[Message] = ()


@dataclass(frozen=True)
class Answer:
    """The continuation.

    Fields:
        ids: its token ids, with the end-of-turn token where it ended by itself.
        ended: whether it did.
    """

    ids: Sequence[int]
    ended: bool


Talk = Generator[Ask, Answer | None, list[Conversation]]


class Decoder(Protocol):
    """What answers; `decoded` counts its tokens."""

    decoded: int

    def add(self, ask: Ask) -> Hashable:
        """Take a question; the name under which its answer will come."""
        ...

    def finished(self) -> Sequence[tuple[Hashable, Answer]]:
        """Work for a while; the answers that are whole now, often none."""
        ...


class EngineDecoder:
    """The target itself, without speculation: at a full batch the rows of a verify are better spent on requests.

    Args:
        model: the target.
        slots: most questions that are answered together.
    """

    def __init__(self, model: Model, slots: int) -> None:
        self._model, self.decoded = model, 0
        self._engine = model.engine("off", config=EngineConfig(slots=slots))

    def add(self, ask: Ask) -> Hashable:
        """Queue a request."""
        request = self._model.request(ask.ids, ask.params)
        self._engine.add(request)
        return request.id

    def finished(self) -> list[tuple[Hashable, Answer]]:
        """One round of the engine."""
        outputs = self._engine.step()
        self.decoded += sum(len(output.tokens) for output in outputs)
        requests = [output.request for output in outputs if output.finished]
        return [(request.id, Answer(request.output, request.finish_reason == "stop")) for request in requests]


def together(talks: Iterator[Talk], decoder: Decoder, most: int) -> Iterator[list[Conversation]]:
    """Hold talks to their ends, up to `most` at a time.

    Yields:
        What the talks that ended had to say, after each of the decoder's rounds: often nothing.
    """
    asked: dict[Hashable, Talk] = {}
    made: list[Conversation] = []

    def go_on(talk: Talk, answer: Answer | None) -> None:
        try:
            ask = talk.send(answer)  # None is how a generator is started
        except StopIteration as end:
            made.extend(end.value)
        else:
            asked[decoder.add(ask)] = talk

    while True:
        while len(asked) < most and (talk := next(talks, None)) is not None:
            go_on(talk, None)
        if not asked:
            return
        for name, answer in decoder.finished():
            go_on(asked.pop(name), answer)
        yield made.copy()
        made.clear()
