"""`auto` on a scripted clock: never much worse than plain decoding, much better where the text repeats."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from firesteel.errors import DamagedState
from firesteel.policy import make
from firesteel.policy.breakeven import BreakEven, BreakEvenConfig
from tests.policy.scripted import Clock, Drafter, Script, Swings, block_of_errors, block_of_script, decode

T1 = 20.0
LINE = list(range(101, 111))


def mild(rows: int, number: int) -> float:
    return T1 * (1 + 0.05 * (rows - 1))


def steep(rows: int, number: int) -> float:
    return T1 * 0.8 * rows


def stepped(rows: int, number: int) -> float:
    return T1 * (1 + 0.6 * ((rows - 1) // 8))


def repeating(name: str = "repeating", reply: int = 400) -> Script:
    """A line six times, and a reply that goes on with it."""
    return Script(name, (LINE * (7 + reply // len(LINE)))[: 6 * len(LINE) + reply], 6 * len(LINE))


def novel(name: str = "novel") -> Script:
    """No three tokens ever come again."""
    dice = random.Random(name)
    return Script(name, [dice.randrange(49_000) for _ in range(700)], 200)


def luring(name: str = "luring") -> Script:
    """Six tokens come again and again, and never twice with the same seventh: every copy's last guess is wrong."""
    dice = random.Random(name)
    return Script(name, [token for _ in range(100) for token in (1, 2, 3, 4, 5, 6, dice.randrange(9, 49_000))], 70)


def noisy(name: str = "noisy") -> Script:
    """Four tokens at random: something is proposed in every round, and is seldom right."""
    dice = random.Random(name)
    return Script(name, [dice.randrange(4) for _ in range(600)], 150)


def speedup(script: Callable[[], Script], clock: Callable[[], Clock]) -> float:
    """Time of `off` over time of `auto`."""
    return decode(make("off"), [script()], clock()).ms / decode(make("auto"), [script()], clock()).ms


@pytest.mark.parametrize("clock", [mild, steep, stepped])
def test_text_that_does_not_repeat_costs_less_than_3_percent(clock: Clock) -> None:
    for script in (novel, luring):
        assert speedup(script, lambda: clock) > 0.97


def test_text_that_only_seems_to_repeat_costs_less_than_3_percent_where_rows_are_dear() -> None:
    assert speedup(noisy, lambda: steep) > 0.97


def test_a_line_repeated_six_times_is_decoded_over_2_5_times_faster_within_48_tokens() -> None:
    trace = decode(make("auto"), [repeating(reply=48)], mild)
    assert decode(make("off"), [repeating(reply=48)], mild).ms / trace.ms > 2.5
    assert max(trace.widths[:7]) >= 16, "long chains within the first rounds"


@pytest.mark.parametrize(("clock", "least"), [(mild, 8.0), (stepped, 7.0)])
def test_long_text_that_repeats_is_decoded_many_times_faster(clock: Clock, least: float) -> None:
    assert speedup(repeating, lambda: clock) > least


def test_rows_that_cost_what_they_earn_are_not_bought() -> None:
    """Every guess is right, and still n rows cost n rounds: nothing may be lost, and nothing can be won."""
    trace = decode(make("auto"), [repeating()], steep)
    assert decode(make("off"), [repeating()], steep).ms / trace.ms > 0.97
    late = trace.widths[len(trace.widths) // 2 :]
    assert sum(width > 1 for width in late) < 0.1 * len(late)


@pytest.mark.parametrize("period_ms", [500.0, 3000.0])
def test_a_machine_that_slows_and_recovers_does_not_make_it_thrash(period_ms: float) -> None:
    def loaded(clock: Clock) -> Callable[[], Clock]:
        return lambda: Swings(clock, lambda rows, number: 2 * clock(rows, number), period_ms)

    assert speedup(repeating, loaded(mild)) > 8.0
    for script in (novel, repeating, noisy):
        assert speedup(script, loaded(steep)) > 0.95


def test_where_a_load_makes_rows_dear_the_better_side_is_found() -> None:
    """Half the time rows are cheap and half the time dear: never under plain decoding, far above it on text that
    repeats."""
    assert speedup(repeating, lambda: Swings(mild, steep, 3000.0)) > 4.0
    assert speedup(noisy, lambda: Swings(mild, steep, 3000.0)) > 0.95


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 9, 12])
def test_one_outlier_of_thirty_times_costs_no_more_than_itself(at: int) -> None:
    def stalled(rows: int, number: int) -> float:
        return mild(rows, number) * (30 if number == at else 1)

    calm, hit = decode(make("auto"), [repeating()], mild), decode(make("auto"), [repeating()], stalled)
    itself = hit.round_ms[at] - mild(hit.widths[at], at)
    assert hit.ms - itself < 1.05 * calm.ms


def test_the_first_round_of_a_request_teaches_no_cost() -> None:
    """It is 30 times slower here: in the first request it may not price anything."""
    policy = BreakEven()
    decode(policy, [repeating(reply=48)], lambda rows, number: mild(rows, number) * (30 if number == 0 else 1))
    assert policy.costs.prices()[0] == pytest.approx(T1)


@pytest.mark.parametrize("drafter", [block_of_script, None])
def test_a_batch_ends_sooner_and_costs_its_unpredictable_requests_little(drafter: Drafter | None) -> None:
    def batch() -> list[Script]:
        return [repeating("a"), novel("b"), repeating("c"), noisy("d")]

    off, auto = decode(make("off"), batch(), mild), decode(make("auto"), batch(), mild, drafter=drafter, draft_ms=2.0)
    assert auto.end_ms["a"] < 0.3 * off.end_ms["a"]
    assert auto.end_ms["c"] < 0.3 * off.end_ms["c"]
    # While the others run wide, the rounds of these two are longer: the batch as a whole gains tokens per millisecond.
    assert sum(auto.end_ms.values()) < 0.8 * sum(off.end_ms.values())


def test_a_row_costs_the_same_whichever_request_it_belongs_to() -> None:
    """Of two requests, the one that repeats gets the rows."""
    scripts = [repeating("a", 100), novel("b")]
    policy = BreakEven()
    decode(policy, [repeating("warm"), repeating("up")], mild)
    views = [script.view() for script in scripts]
    _, trees = policy.grow(views, policy.plan(views), [None, None])
    assert trees[0].width >= 16
    assert trees[1].width == 1


def test_a_drafter_that_is_right_is_used_and_one_that_is_wrong_is_left_out() -> None:
    off = decode(make("off"), [novel()], mild).ms
    assert off / decode(make("auto"), [novel()], mild, drafter=block_of_script, draft_ms=4.0).ms > 3.0
    assert off / decode(make("auto"), [novel()], mild, drafter=block_of_errors, draft_ms=4.0).ms > 0.95


def test_what_was_learned_survives_json_and_saves_the_first_rounds() -> None:
    policy = BreakEven()
    decode(policy, [repeating()], mild)
    again = BreakEven()
    again.load(json.loads(json.dumps(policy.state())))
    trace = decode(again, [repeating("next")], mild)
    assert trace.widths[0] >= 16


def test_no_tree_is_wider_than_configured() -> None:
    trace = decode(BreakEven(BreakEvenConfig(width=5)), [repeating()], mild)
    assert max(trace.widths) == 5
    assert set(decode(make("auto", width=1), [repeating(reply=30)], mild).widths) == {1}


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"costs": {}},
        {"costs": [], "counts": {}},
        {"costs": {"5": 1.0}, "counts": {}},
        {"costs": {"1": 0.0}, "counts": {}},
        {"costs": {"1": float("nan")}, "counts": {}},
        {"costs": {"1": 2.0}, "counts": {"pick 1": [1.0]}},
        {"costs": {"1": 2.0}, "counts": {"pick 1": [2.0, 1.0]}},
        {"costs": {"1": 2.0}, "counts": {"pick 1": [-1.0, 1.0]}},
    ],
)
def test_a_state_of_something_else_is_refused_and_leaves_the_policy_as_new(state: Any) -> None:
    policy = BreakEven()
    policy.load({"costs": {"1": 2.0}, "counts": {"pick 1": [1.0, 2.0]}})
    with pytest.raises(DamagedState):
        policy.load(state)
    assert policy.state() == BreakEven().state()
