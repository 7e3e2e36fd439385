"""Conversations in a target's own words: what a drafter of that target is trained on.

Invented conversations are one user turn that the target writes itself, after its chat template's opening of one, and
one reply. Answered ones take their user turns from elsewhere. Each is a `Talk`: see `firesteel.train.stream`.

Every draw of a conversation comes from the run's seed and the conversation's index alone, so what a conversation says
depends neither on the batch that it was made in nor on where a run was interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from firesteel.errors import InvalidParameter, UnsupportedModel
from firesteel.sampling import SamplingParams
from firesteel.train.chat import Chat, Message
from firesteel.train.conversations import Conversation
from firesteel.train.overlap import Overlap
from firesteel.train.stream import Answer, Ask, Talk

OPENED = 0.65  # how many user turns begin with an opening
TURN_TOKENS, TURN_TOP_P = 160, 0.95
SHORTEST_TURN, LONGEST_TURN = 13, 899  # characters
SHORTEST_REPLY = 12  # tokens
MOST_ATTEMPTS = 100


@dataclass(frozen=True, kw_only=True)
class SelfPlay:
    """How conversations are made.

    Fields:
        chat: the target's template.
        overlap: of the evaluation prompts, which no user turn may hold.
        seed: of the run, >= 0.
        temperatures: each reply draws its own from these.
        reply_len: most tokens of a reply.
        openings: beginnings of user turns; none lets the target begin all of them.
        over: whether the time is up; a user turn that is of no use is then not tried again.
        dropped: counts what was not kept, by reason.

    Raises:
        InvalidParameter: a value out of its range.
    """

    chat: Chat
    overlap: Overlap
    seed: int = 0
    temperatures: Sequence[float] = (0.0, 0.0, 0.6, 1.0)
    reply_len: int = 448
    openings: Sequence[str] = ()
    over: Callable[[], bool] = lambda: False
    dropped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InvalidParameter(f"seed = {self.seed} is out of range: a number >= 0")
        if not SHORTEST_REPLY <= self.reply_len < self.chat.max_context:
            raise InvalidParameter(
                f"reply_len = {self.reply_len} is out of range: from {SHORTEST_REPLY} to below the target's context "
                f"of {self.chat.max_context}"
            )

    def talks(self, indices: Iterable[int], turns: Mapping[int, Sequence[str]] | None = None) -> Iterator[Talk]:
        """The conversations of these indices, until the time is up.

        Those begun are finished all the same: to leave out what takes longest would favour short replies.

        Args:
            turns: user turns by index; None lets the target invent them.
        """
        for index in indices:
            if self.over():
                return
            yield self.invent(index) if turns is None else self.answer(index, turns[index])

    def invent(self, index: int) -> Talk:
        """A user turn of the target's own and its reply, tried until both are of use.

        Raises:
            UnsupportedModel: they never are.
        """
        for attempt in range(MOST_ATTEMPTS):
            if attempt and self.over():
                return []
            draws = np.random.default_rng((self.seed, index, attempt))
            turn = yield from self._user_turn(draws)
            if turn is None:
                continue
            made = yield from self._reply([{"role": "user", "content": turn}], draws, index)
            if made is not None:
                return [made]
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self.dropped.most_common())
        raise UnsupportedModel(
            f"{MOST_ATTEMPTS} user turns in a row were of no use; the target does not write its own ({reasons})"
        )

    def answer(self, index: int, turns: Sequence[str]) -> Talk:
        """Replies to given user turns, one conversation each: a later turn follows the replies to the earlier ones."""
        messages: list[Message] = []
        conversations: list[Conversation] = []
        draws = np.random.default_rng((self.seed, index))
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            made = yield from self._reply(list(messages), draws, index)
            if made is None:
                break
            conversations.append(made)
            messages.append({"role": "assistant", "content": self.chat.text(made.reply.tolist())})
        return conversations

    def _user_turn(self, draws: np.random.Generator) -> Generator[Ask, Answer, str | None]:
        opened = bool(self.openings) and draws.random() < OPENED
        opening = self.openings[int(draws.integers(len(self.openings)))] if opened else ""
        params = SamplingParams(temperature=1.0, top_p=TURN_TOP_P, max_tokens=TURN_TOKENS, seed=_seed(draws))
        answer = yield Ask(self.chat.user_turn(opening), params)
        turn = (opening + self.chat.text(answer.ids)).strip()
        if not answer.ended:
            return self._drop("a user turn without an end")
        if not SHORTEST_TURN <= len(turn) <= LONGEST_TURN:
            return self._drop("a user turn too short or too long")
        if self.overlap.find(turn):
            return self._drop("an evaluation prompt")
        return turn

    def _reply(
        self, messages: list[Message], draws: np.random.Generator, index: int
    ) -> Generator[Ask, Answer, Conversation | None]:
        prompt = self.chat.prompt(messages)
        if len(prompt) + self.reply_len > self.chat.max_context:
            return self._drop("no room for a reply")
        temperature = float(draws.choice(np.asarray(self.temperatures)))
        params = SamplingParams(temperature=temperature, max_tokens=self.reply_len, seed=_seed(draws))
        answer = yield Ask(prompt, params, messages)
        if len(answer.ids) < SHORTEST_REPLY:
            return self._drop("a reply too short")
        ids = np.array([*prompt, *answer.ids], np.int32)
        return Conversation(ids, len(prompt), temperature, index)

    def _drop(self, reason: str) -> None:
        self.dropped[reason] += 1


def _seed(draws: np.random.Generator) -> int:
    return int(draws.integers(2**31))  # some servers take no larger ones
