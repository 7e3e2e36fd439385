"""`bench peers`: who answers what and in which order, what is a ratio, and what each engine's reply says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firesteel.bench import contenders, contest
from firesteel.bench.contenders import (
    FiresteelContender,
    Reply,
    TransformersContender,
    check_arms,
)
from firesteel.bench.contest_report import peers_tables
from firesteel.bench.decode import Arm
from firesteel.bench.prompts import Conversation
from firesteel.cli import main
from firesteel.errors import InvalidParameter
from tests import toys

REPLY = Reply(tokens=[1, 2, 3], text="abc", count=21, first=1, seconds=2.0, rounds=10, parts={"draft": 30.0})


@dataclass
class Scripted:
    """Answers with one reply and notes what it was asked, in a list that all contenders share."""

    name: str
    engine: str
    answer: Reply
    asked: list[tuple[str, list[int]]] = field(default_factory=list)

    def reply(self, ids: Sequence[int], most: int) -> Reply:
        self.asked.append((self.name, list(ids)))
        return self.answer


class StubModel:
    """Encodes a conversation as its number of letters."""

    class target:  # noqa: N801
        class shape:  # noqa: N801
            max_context = 200

    def encode(self, text: str) -> list[int]:
        return [0]

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [len(one["content"]) for one in messages]


def test_arms_take_turns_and_follow_the_first_ones_reply() -> None:
    asked: list[tuple[str, list[int]]] = []
    arms = [
        Scripted("llama", "llama.cpp", REPLY, asked),
        Scripted("off", "firesteel", replace(REPLY, text="other text"), asked),
    ]
    conversations = [Conversation("a", "s", ("12345", "1234")), Conversation("b", "s", ("1",))]
    pauses: list[float] = []
    scores = contest.run(StubModel(), arms, conversations, 16, pause=pauses.append)  # type: ignore[arg-type]
    assert asked == [
        ("llama", [0]), ("off", [0]),  # once before anything counts
        ("llama", [5]), ("off", [5]),
        ("off", [5, 3, 4]), ("llama", [5, 3, 4]),
        ("off", [1]), ("llama", [1]),
    ]  # fmt: skip
    assert len(pauses) == 6
    assert list(scores[0].replies) == [("a", 0), ("a", 1), ("b", 0)]


def test_a_prompt_that_leaves_no_room_is_asked_of_nobody() -> None:
    arms = [Scripted("llama", "llama.cpp", REPLY)]
    [score] = contest.run(StubModel(), arms, [Conversation("a", "s", ("x",))], 200, pause=lambda _: None)  # type: ignore[arg-type]
    assert score.replies == {}
    assert contest.summary([score])["arms"][0]["tokens_per_s"] is None


def score(name: str, engine: str, **replies: Reply) -> contest.Score:
    return contest.Score(Scripted(name, engine, REPLY), {(key, 0): reply for key, reply in replies.items()})


def test_ratios_are_of_replies_that_looped_in_neither() -> None:
    """Ours is twice as fast on a and half as fast on b; c looped to the peer, and d is its first token alone."""
    looped, short = replace(REPLY, tokens=[7] * 60, seconds=0.001), replace(REPLY, count=1, seconds=0.0, rounds=0)
    peer = score("llama", "llama.cpp", a=REPLY, b=REPLY, c=looped, d=REPLY)
    ours = score("off", "firesteel", a=replace(REPLY, seconds=1.0), b=replace(REPLY, seconds=4.0), c=REPLY, d=short)
    found = contest.summary([peer, ours])
    [ratio] = found["ratios"]
    assert (ratio["arm"], ratio["to"], ratio["replies"]) == ("off", "llama", 2)
    assert ratio["ratio"] == pytest.approx(1.0)
    assert (ratio["ratio_low"], ratio["ratio_high"]) == (pytest.approx(0.5), pytest.approx(2.0))
    theirs, own = found["arms"]
    assert (theirs["replies"], theirs["looped"]) == (3, 1)
    assert theirs["tokens_per_s"] == pytest.approx(10.0)
    assert theirs["tokens_per_round"] == pytest.approx(2.0)
    assert theirs["round_ms"] == pytest.approx(200.0)
    assert theirs["parts_ms"] == {"draft": pytest.approx(3.0)}
    assert (own["replies"], own["tokens"], own["seconds"]) == (3, 60, 7.0)


def test_who_is_compared_with_whom() -> None:
    scores = [
        score("llama", "llama.cpp", a=REPLY), score("llama-dspark", "llama.cpp", a=REPLY),
        score("transformers", "transformers", a=REPLY), score("off", "firesteel", a=REPLY),
        score("chain:4", "firesteel", a=replace(REPLY, text="else")),
    ]  # fmt: skip
    found = contest.summary(scores)
    assert {(one["arm"], one["to"]) for one in found["ratios"]} == {
        ("llama-dspark", "llama"), ("off", "llama"), ("off", "llama-dspark"), ("off", "transformers"),
        ("chain:4", "llama"), ("chain:4", "llama-dspark"), ("chain:4", "transformers"), ("chain:4", "off"),
    }  # fmt: skip
    assert [arm["same_as_plain"] for arm in found["arms"]] == [1, 1, 1, 1, 0]


def test_the_page_says_which_milliseconds_differ_where_we_are_not_faster() -> None:
    fast = replace(REPLY, seconds=1.0)
    slow = replace(REPLY, seconds=3.0, rounds=15, parts={"draft": 60.0, "verify": 2700.0, "host": 240.0})
    scores = [
        score("llama", "llama.cpp", a=fast), score("llama-dspark", "llama.cpp", a=fast),
        score("off", "firesteel", a=slow), score("chain:4", "firesteel", a=slow),
    ]  # fmt: skip
    page = peers_tables({"precisions": [{"dtype": "int8", **contest.summary(scores)}]})
    assert "## int8 against Q8_0" in page
    assert "| chain:4 | 0.33 [0.33, 0.33] | 0.33 [0.33, 0.33] | 1.00 [1.00, 1.00] |" in page
    assert "| chain:4 | 15 | 200.00 | 4.00 | 180.00 | 16.00 | 150.00 |" in page
    assert (
        "- `chain:4` against `llama-dspark`, 0.33 [0.33, 0.33]: 150.00 ms a token against 50.00; a round takes "
        "200.00 ms against 100.00 and brings 1.33 tokens against 2.00. Of a round the drafter takes 4.00 ms against "
        "3.00, the rest 196.00 against 97.00."
    ) in page
    assert "`off` against `llama`," in page
    assert "`off` against `llama-dspark`," not in page  # a plain arm answers to plain arms
    faster = peers_tables({"precisions": [{"dtype": "bf16", **contest.summary([scores[2], scores[0]])}]})
    assert "not faster" in faster


def test_a_page_of_nothing() -> None:
    empty = contest.summary([score("llama", "llama.cpp"), score("off", "firesteel")])
    assert "| off | firesteel | 0 | 0 | 0 |" in peers_tables({"precisions": [{"dtype": "bf16", **empty}]})


@pytest.mark.parametrize(("policy", "width"), [("off", None), ("chain", 4)])
def test_our_own_reply_is_counted_round_by_round(policy: str, width: int | None) -> None:
    parts: list[tuple[float, float, float]] = [(9.0, 9.0, 9.0)]  # of the reply before

    def record(report: Any) -> None:
        if not report.first:
            parts.append((1.0, 10.0, 2.0))

    class OfToys:
        def request(self, ids: Sequence[int], params: Any) -> Any:
            return toys.request(ids, max_tokens=params.max_tokens)

    arm = Arm(policy, width, toys.engine(toys.target(), policy, width, record=record), parts)
    reply = FiresteelContender(policy, OfToys(), arm).reply([5, 17, 3], 24)  # type: ignore[arg-type]
    assert reply.count == len(reply.tokens) == 24
    assert reply.rounds is not None
    assert reply.parts == {"draft": reply.rounds * 1.0, "verify": reply.rounds * 10.0, "host": reply.rounds * 2.0}
    if policy == "off":
        assert (reply.first, reply.rounds) == (1, 23)


@pytest.mark.parametrize("options", [{}, {"prompt_lookup_num_tokens": 10}])
def test_transformers_replies_are_ours(options: dict[str, Any]) -> None:
    class Letters:
        pad_token_id, eos_token_id = None, 96

        def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
            return "".join(chr(token + 33) for token in tokens)

    prompt = [5, 17, 3, 5, 17, 3]
    reply = TransformersContender("t", toys.model(), Letters(), options).reply(prompt, 24)
    request = toys.request(prompt, max_tokens=24)
    toys.decode(toys.target(), [request])
    assert reply.tokens == request.output
    assert reply.text == request.text.text
    assert reply.rounds is not None
    assert reply.rounds <= reply.timed == 24 - reply.first
    if not options:
        assert (reply.first, reply.rounds) == (1, 23)


def test_what_each_arm_is_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In int8 nobody asks transformers; the drafter's file is there when its server starts, and gone afterwards."""
    started: list[list[str]] = []

    @contextmanager
    def served(*words: object) -> Iterator[str]:
        started.append([str(word) for word in words])
        yield "server"
        started.append([])

    def write(drafter: str, folder: Path, format: str, target: str, dtype: str) -> None:
        folder.mkdir()
        (folder / "drafter.q8_0.gguf").write_text(f"{drafter} {format} {target} {dtype}")

    monkeypatch.setattr(contenders, "served", served)
    monkeypatch.setattr(contenders, "write", write)
    monkeypatch.setattr(contenders, "resolve", lambda name: name)
    monkeypatch.setattr(contenders.peers, "gguf_file", lambda folder, dtype: f"{folder}.{dtype}")
    monkeypatch.setattr(contenders, "parse_arms", lambda model, name, width: [name])
    model: Any = SimpleNamespace(dtype="int8", drafter=SimpleNamespace(folder="mine"), loaded=SimpleNamespace(name="t"))
    names = ["llama", "llama-dspark", "transformers", "chain:4"]
    with contenders.contenders(names, model, threads=2, server_options=["-fa", "off"]) as made:
        assert [(one.name, one.engine) for one in made] == [
            ("llama", "llama.cpp"), ("llama-dspark", "llama.cpp"), ("chain:4", "firesteel"),
        ]  # fmt: skip
        plain, drafting = started
        assert plain == ["-m", "t.int8", "-c", "4096", "-np", "1", "-t", "2", "-lv", "4", "-fa", "off"]
        file = Path(drafting[drafting.index("-md") + 1])
        assert file.read_text() == "mine gguf t int8"
        assert drafting[drafting.index("--spec-type") + 1] == "draft-dspark"
    assert not file.exists()
    assert started[2:] == [[], []]
    model.drafter = None
    with pytest.raises(InvalidParameter, match="needs a drafter"), contenders.contenders(names, model, threads=2):
        pass


def test_unknown_arms_are_named() -> None:
    check_arms(["llama", "off", "chain:4", "auto@ngram"])
    with pytest.raises(InvalidParameter, match="did you mean 'llama-dspark'"):
        check_arms(["llama-dpsark"])
    with pytest.raises(InvalidParameter, match="there twice"):
        check_arms(["off", "off"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arms", "vllm"], "unknown arm 'vllm'"),
        (["--precisions", "int4"], "unknown precision 'int4'"),
        (["--threads", "0"], "threads must be at least 1"),
        (["--arms", "off,llama"], "llama-server is not built"),
    ],
)
def test_wrong_words_fail_before_anything_is_loaded(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["firesteel", "bench", "peers", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.replace("\n", "")
