"""The engine on a small model: speculation changes no token, a batch changes no request, slots all come back."""

from __future__ import annotations

from typing import Any

import pytest

from firesteel.engine.drafter import Adversary, Replay
from firesteel.engine.request import Request
from firesteel.engine.stopwatch import Stopwatch
from firesteel.rounds import RoundReport
from tests import toys

PROMPTS = {"a": [5, 17, 3, 40], "b": [8] * 30, "c": [1], "d": [2, 9, 2, 9, 2, 9, 2], "e": list(range(20))}

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 7},
    "filtered": {"temperature": 0.8, "seed": 8, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "penalised": {"presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
    "biased": {"temperature": 0.7, "seed": 1, "logit_bias": {3: 4.0, 9: -5.0}, "min_tokens": 6},
}


@pytest.fixture(scope="module")
def target() -> Any:
    return toys.target()


def requests(settings: dict[str, Any], names: str = "abcde", max_tokens: int = 24) -> list[Request]:
    return [toys.request(PROMPTS[name], name, max_tokens=max_tokens, **settings) for name in names]


@pytest.fixture(scope="module")
def plain(target: Any) -> dict[str, dict[str, list[int]]]:
    """Every request alone, one row a round: what all else must equal."""
    texts: dict[str, dict[str, list[int]]] = {}
    for setting, params in SETTINGS.items():
        texts[setting] = {}
        for one in requests(params):
            toys.decode(target, [one])
            texts[setting][one.id] = one.output
    return texts


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("policy", "width"), [("off", None), ("chain", 4), ("tree", 3), ("tree", 16), ("auto", None)])
def test_speculation_and_batches_change_no_token(
    target: Any, plain: dict[str, dict[str, list[int]]], setting: str, policy: str, width: int | None
) -> None:
    """Also at T > 0: a fixed tree is verified by `match`, whose draws are those of plain decoding."""
    texts = plain[setting]
    for drafter in (Replay(texts, toys.VOCAB), Replay(texts, toys.VOCAB, rank=1), Adversary(texts, toys.VOCAB)):
        batch = requests(SETTINGS[setting])
        runner = toys.decode(target, batch, policy, width, drafter=drafter)
        assert {one.id: one.output for one in batch} == texts
        assert runner.cache.free_slots == 4


def test_order_of_arrival_changes_nothing(target: Any, plain: dict[str, dict[str, list[int]]]) -> None:
    batch = requests(SETTINGS["sampled"])[::-1]
    toys.decode(target, batch, "tree", 8)
    assert {one.id: one.output for one in batch} == plain["sampled"]


def test_preemption_loses_nothing(target: Any, plain: dict[str, dict[str, list[int]]]) -> None:
    batch = requests(SETTINGS["sampled"])
    runner = toys.engine(target, "tree", 8, cache_tokens=250)
    held: list[int] = []
    for _ in runner.run(batch):
        held.append(len(runner.scheduler.running))
    assert {one.id: one.output for one in batch} == plain["sampled"]
    assert min(held[:-1]) < max(held), "the cache is too small for all, so some must have waited"
    assert runner.cache.free_slots == 4


def test_an_abort_frees_its_slot_and_touches_nobody(target: Any, plain: dict[str, dict[str, list[int]]]) -> None:
    batch = requests(SETTINGS["greedy"], "abc")
    runner = toys.engine(target, "tree", 8)
    for one in batch:
        runner.add(one)
    runner.step()
    runner.abort(batch[1])
    assert runner.cache.free_slots == 2
    while runner.step():
        pass
    assert batch[0].output == plain["greedy"]["a"]
    assert batch[2].output == plain["greedy"]["c"]
    assert batch[1].finish_reason == "abort"
    assert runner.cache.free_slots == 4


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9])
def test_max_tokens_is_exact_and_drafts_stop_at_it(target: Any, plain: dict[str, Any], limit: int) -> None:
    drafter = Replay(plain["greedy"], toys.VOCAB)
    rows: list[int] = []
    one = toys.request(PROMPTS["a"], "a", max_tokens=limit)
    toys.decode(
        target, [one], "tree", 16, drafter=drafter, record=lambda report: rows.append(report.trees[0].depths.max())
    )
    assert one.output == plain["greedy"]["a"][:limit]
    assert one.finish_reason == "length"
    assert rows[0] <= limit - 1


def test_the_context_limit_ends_a_reply(target: Any) -> None:
    one = toys.request(PROMPTS["a"], max_tokens=5000, ignore_eos=True)
    one.max_context = 60
    toys.decode(target, [one], "tree", 16)
    assert one.length == 60
    assert one.finish_reason == "length"


def test_logprobs_are_those_of_plain_decoding_for_every_token(target: Any, plain: dict[str, Any]) -> None:
    alone, batched = (toys.request(PROMPTS["a"], "a", max_tokens=20, logprobs=3) for _ in range(2))
    toys.decode(target, [alone])
    toys.decode(target, [batched, *requests({}, "bc")], "tree", 8, drafter=Replay(plain["greedy"], toys.VOCAB))
    assert len(batched.logprobs) == len(batched.output) == 20
    for one, other in zip(alone.logprobs, batched.logprobs, strict=True):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [t for t, _ in one.top] == [t for t, _ in other.top]
        assert one.top[0][1] == pytest.approx(one.logprob), "greedy takes the likeliest"


def test_rows_offered_and_accepted_add_up(target: Any, plain: dict[str, Any]) -> None:
    offered: list[int] = []
    one = toys.request(PROMPTS["d"], "d")
    toys.decode(
        target,
        [one],
        "tree",
        8,
        drafter=Replay(plain["greedy"], toys.VOCAB),
        record=lambda report: offered.append(report.rows - 1),
    )
    assert sum(offered) == one.speculation.offered
    assert one.speculation.rows == one.speculation.offered + one.speculation.rounds


def test_recording_comes_before_learning_and_is_in_no_rounds_time(target: Any) -> None:
    """Pins: a slow disk in the traced host time, and a policy asked what decided a round after it has learned."""
    now, seconds, calls = [0.0], [], []

    def record(report: RoundReport) -> None:
        calls.append("record")
        seconds.append(report.draft_ms + report.verify_ms + report.other_ms)
        now[0] += 100.0

    runner = toys.engine(target, "tree", 4, record=record)
    runner.watch = Stopwatch(lambda: now[0])
    runner.policy.learn = lambda report: calls.append("learn")  # type: ignore[method-assign]
    for _ in runner.run([toys.request(PROMPTS["b"], max_tokens=8)]):
        pass
    assert len(seconds) > 2 and seconds == [0.0] * len(seconds)
    assert calls == ["record", "learn"] * len(seconds)


def test_a_padded_vocabulary_is_never_sampled() -> None:
    padded = toys.target(vocab_size=128)
    one = toys.request(PROMPTS["a"], temperature=5.0, seed=3, max_tokens=64)
    runner = toys.engine(padded)
    runner.vocab_size = 50
    for _ in runner.run([one]):
        pass
    assert max(one.output) < 50
