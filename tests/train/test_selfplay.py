"""Conversations made by a toy target: repeatable, resumable, and never with an evaluation prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from firesteel.bench.prompts import held_out
from firesteel.errors import InvalidParameter, UnsupportedModel
from firesteel.model import Model
from firesteel.train.chat import Chat
from firesteel.train.conversations import Conversation, read_folder
from firesteel.train.overlap import Overlap
from firesteel.train.selfplay import MOST_ATTEMPTS, SelfPlay
from firesteel.train.shards import Shards
from firesteel.train.stream import Answer, Ask, EngineDecoder, Talk, together

POISON = held_out()[0].turns[0]
GOOD_TURN, GOOD_REPLY = "How do magnets work?", "They pull at each other, or push."


def settings(chat: Chat, **changes: object) -> SelfPlay:
    return SelfPlay(**{"chat": chat, "overlap": Overlap(), "reply_len": 24, "openings": ("How do",), **changes})


def text_of(chat: Chat, conversations: Iterable[Conversation]) -> dict[int, tuple[str, int, float]]:
    made = list(conversations)
    by_index = {one.index: (chat.text(one.ids), one.prompt_len, one.temperature) for one in made}
    assert len(by_index) == len(made), "an index was made twice"
    return by_index


class Killed(Exception):
    pass


def make(model: Model, play: SelfPlay, folder: Path, count: int, batch: int, kill_after: int | None = None) -> None:
    """Make conversations 0..count-1 in shards of four; a killed run writes nothing on its way out."""
    shards, made = Shards(folder, play.seed, size=4), 0
    missing = [index for index in range(count) if index not in shards.done]
    for new in together(play.talks(missing), EngineDecoder(model, batch), batch):
        shards.add(new)
        made += len(new)
        if kill_after is not None and made >= kill_after:
            raise Killed
    shards.write()


def test_a_run_is_a_function_of_its_seed_whatever_its_batch(model: Model, chat: Chat, tmp_path: Path) -> None:
    for name, seed, batch in (("a", 1, 6), ("b", 1, 2), ("c", 2, 6)):
        make(model, settings(chat, seed=seed), tmp_path / name, 6, batch)
    a, b, c = (text_of(chat, read_folder(tmp_path / name)) for name in "abc")
    assert a.keys() == b.keys() == c.keys() == set(range(6))
    assert a == b
    assert not set(a.values()) & set(c.values())
    assert {temperature for _, _, temperature in [*a.values(), *c.values()]} == {0.0, 0.6, 1.0}


def test_a_killed_run_loses_a_shard_at_most_and_goes_on(model: Model, chat: Chat, tmp_path: Path) -> None:
    make(model, settings(chat), tmp_path / "whole", 7, 3)
    with pytest.raises(Killed):
        make(model, settings(chat), tmp_path / "killed", 7, 3, kill_after=6)
    assert len(list(read_folder(tmp_path / "killed"))) == 4
    make(model, settings(chat), tmp_path / "killed", 7, 3)
    assert text_of(chat, read_folder(tmp_path / "killed")) == text_of(chat, read_folder(tmp_path / "whole"))
    files = [file.name for file in sorted((tmp_path / "killed").iterdir())]
    assert files == [f"shard00_{number:04d}.npz" for number in range(2)]


def answers(chat: Chat, talk: Talk, texts: Sequence[str]) -> tuple[list[Ask], list[Conversation] | None]:
    """Give a talk these answers in turn; what it asked, and what it said when it ended."""
    asks = [next(talk)]
    for text in texts:
        try:
            asks.append(talk.send(Answer(chat.reply(text, ended=True), True)))
        except StopIteration as end:
            return asks, end.value
    return asks, None


def test_an_invented_conversation_is_a_turn_and_a_reply(chat: Chat) -> None:
    asks, made = answers(chat, settings(chat, openings=()).invent(3), [f" {GOOD_TURN}\n", GOOD_REPLY])
    assert chat.text(asks[0].ids) == "user\n"
    assert asks[1].messages == [{"role": "user", "content": GOOD_TURN}]
    assert asks[0].params.seed != asks[1].params.seed
    assert made is not None
    [conversation] = made
    assert conversation.index == 3
    assert chat.text(conversation.ids) == f"user\n{GOOD_TURN}\nassistant\n{GOOD_REPLY}"
    assert conversation.reply.tolist() == chat.reply(GOOD_REPLY, ended=True)


@pytest.mark.parametrize("opening", ["", POISON[:40]])
def test_an_invented_evaluation_prompt_is_refused(chat: Chat, opening: str) -> None:
    play = settings(chat, openings=())
    asks, made = answers(chat, play.invent(0), [POISON, GOOD_TURN])
    assert [len(ask.messages) for ask in asks] == [0, 0, 1]
    assert made is None, "the reply to the second turn is awaited"
    assert play.dropped == {"an evaluation prompt": 1}
    # Its twin that knows no evaluation prompt would have taken it.
    asks, _ = answers(chat, settings(chat, openings=(), overlap=Overlap([]), reply_len=99).invent(0), [POISON])
    assert asks[1].messages == [{"role": "user", "content": POISON.strip()}]


@pytest.mark.parametrize(
    ("turn", "reason"),
    [("Why so?", "a user turn too short or too long"), ("x" * 900, "a user turn too short or too long")],
)
def test_a_useless_turn_is_tried_again_until_time_or_patience_is_over(chat: Chat, turn: str, reason: str) -> None:
    play = settings(chat, openings=())
    with pytest.raises(UnsupportedModel, match=f"{reason}: {MOST_ATTEMPTS}"):
        answers(chat, play.invent(0), [turn] * MOST_ATTEMPTS)
    assert answers(chat, settings(chat, openings=(), over=lambda: True).invent(0), [turn])[1] == []


def test_a_turn_without_an_end_and_a_reply_too_short_are_tried_again(chat: Chat) -> None:
    play = settings(chat, openings=())
    talk = play.invent(0)
    next(talk)
    talk.send(Answer(chat.reply(GOOD_TURN, ended=False), False))
    assert talk.send(Answer(chat.reply(GOOD_TURN, ended=True), True)).messages
    assert not talk.send(Answer(chat.reply("No, never.", ended=True), True)).messages
    assert play.dropped == {"a user turn without an end": 1, "a reply too short": 1}


def test_given_turns_follow_the_replies_to_the_earlier_ones(chat: Chat) -> None:
    asks, made = answers(chat, settings(chat).answer(8, ["One?", "Two?"]), ["The first reply.", "The second reply."])
    assert asks[1].messages == [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "The first reply."},
        {"role": "user", "content": "Two?"},
    ]
    assert made is not None
    assert [(one.index, chat.text(one.reply)) for one in made] == [(8, "The first reply."), (8, "The second reply.")]


def test_a_prompt_without_room_for_a_reply_is_dropped(chat: Chat) -> None:
    play = settings(chat)
    with pytest.raises(StopIteration) as ended:
        next(play.answer(0, ["x" * 600]))
    assert ended.value.value == []
    assert play.dropped == {"no room for a reply": 1}


def test_when_the_time_is_up_what_was_begun_is_finished(chat: Chat) -> None:
    times = iter([False, False, True])
    play = settings(chat, over=lambda: next(times))
    assert len(list(play.talks(range(9), {index: ["One?"] for index in range(9)}))) == 2


@pytest.mark.parametrize(("changes", "said"), [({"seed": -1}, "seed = -1"), ({"reply_len": 11}, "reply_len = 11")])
def test_settings_out_of_range(chat: Chat, changes: dict[str, int], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        settings(chat, **changes)


def test_the_stream_keeps_the_batch_full() -> None:
    class Echo:
        """Answers the oldest question of those it has."""

        decoded = 0

        def __init__(self) -> None:
            self.asked: list[str] = []
            self.most: list[int] = []

        def add(self, ask: str) -> str:
            self.asked.append(ask)
            return ask

        def finished(self) -> list[tuple[str, str]]:
            self.most.append(len(self.asked))
            first = self.asked.pop(0)
            return [(first, first.upper())]

    def talk(name: str) -> Iterator[str]:
        first = yield f"{name}1"
        second = yield f"{name}2"
        return [f"{first}{second}"]

    echo = Echo()
    said = [one for made in together((talk(name) for name in "abcd"), echo, 3) for one in made]
    assert sorted(said) == ["A1A2", "B1B2", "C1C2", "D1D2"]
    assert echo.most == [3, 3, 3, 3, 3, 2, 1, 1]  # three until no talk is left to begin
