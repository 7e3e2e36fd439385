"""Whether to draft: starts, trials, rests, and what they are judged by."""

from __future__ import annotations

import pytest

from firesteel.policy.config import AdaSparkConfig
from firesteel.policy.resting import Earned, Resting

CONFIG = AdaSparkConfig()
PLAIN = Earned(1.0, 1.0, 0.0, 20.0, 1.0)
GOOD = Earned(3.0, 3.0, 2.0, 25.0, 1.25)
BAD = Earned(1.1, 1.0, 0.0, 25.0, 1.25)


def serve(resting: Resting, rounds: int, draft: Earned, plain: Earned = PLAIN) -> list[bool]:
    """Rounds as they come; which of them drafted."""
    drafted = []
    for _ in range(rounds):
        drafted.append(resting.drafts())
        resting.learn(drafted[-1], draft if drafted[-1] else plain)
    return drafted


def rests(drafted: list[bool]) -> list[int]:
    """Lengths of the runs of rounds without a draft."""
    runs = "".join("d" if one else "r" for one in drafted).split("d")
    return [len(run) for run in runs if run]


def test_it_starts_without_and_goes_on_drafting_while_drafts_pay() -> None:
    drafted = serve(Resting(CONFIG), 300, GOOD)
    assert drafted == [False] * 4 + [True] * 296


def test_each_rest_is_twice_as_long_up_to_256_rounds() -> None:
    drafted = serve(Resting(CONFIG), 2000, BAD)
    assert rests(drafted)[:8] == [4, 8, 16, 32, 64, 128, 256, 256]
    assert sum(drafted) <= 0.03 * len(drafted)


def test_a_trial_that_pays_ends_the_rests() -> None:
    resting = Resting(CONFIG)
    serve(resting, 100, BAD)
    assert all(serve(resting, 300, GOOD)[-200:])
    assert rests(serve(resting, 60, BAD))[0] == 8, "and the next rest is a short one again"


def test_a_new_request_cuts_a_long_rest_short() -> None:
    resting = Resting(CONFIG)
    serve(resting, 600, BAD)
    resting.new_request()
    assert any(serve(resting, 9, BAD))


def test_an_expectation_is_believed_against_the_dice_only_so_far() -> None:
    """Expected 3 tokens a round and none accepted: bad luck in four rounds, and not in sixteen."""
    assert sum(serve(Resting(CONFIG), 20, Earned(3.0, 1.0, 0.0, 25.0, 1.25))[4:]) in range(5, 16)
    unlucky = [Earned(1.5, 1.0, 0.0, 25.0, 1.25), Earned(1.5, 2.0, 1.0, 25.0, 1.25)]
    resting = Resting(CONFIG)
    for i in range(300):  # a third less than expected is within the doubt
        drafted = resting.drafts()
        resting.learn(drafted, unlucky[i % 3 == 0] if drafted else PLAIN)
        assert drafted == (i >= 4)


def test_luck_is_not_earned() -> None:
    """Drafts that are expected not to pay do not, whatever the dice gave."""
    assert rests(serve(Resting(CONFIG), 60, Earned(1.1, 4.0, 3.0, 25.0, 1.25)))[1] == 8


@pytest.mark.parametrize(("plain", "rest"), [(1.25, True), (1.05, False)])
def test_drafts_are_compared_with_plain_rounds_at_todays_price(plain: float, rest: bool) -> None:
    """The last rounds without are long ago, when the machine took ten times as long. What plain rounds bring now is in
    the reports of rounds with a draft."""
    resting = Resting(CONFIG)
    serve(resting, 4, GOOD, Earned(1.0, 1.0, 0.0, 200.0, 1.0))
    assert bool(rests(serve(resting, 30, Earned(1.1, 1.1, 0.1, 25.0, plain)))) is rest
