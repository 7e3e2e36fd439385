"""Eq. 7 of AdaSpark: what rows are expected to bring, the long-run price of time, and the margin."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from firesteel.errors import DamagedState
from firesteel.policy.chooser import Chooser, Growth
from firesteel.policy.config import AdaSparkConfig
from firesteel.policy.rates import Gain

BAND = (9, 1)
FALLING = 0.8 * 0.9 ** np.arange(20)


class Fixed(Gain):
    """A gain that is known."""

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def at(self, context: float) -> float:
        return self.gain


def growth(survival: np.ndarray = FALLING, requests: int = 1, text: int = 0) -> Growth:
    """The last `text` candidates only the text proposes."""
    of_text = np.arange(len(survival)) >= len(survival) - text
    return Growth(requests, 400.0, survival, of_text)


def chooser(*gains: float, **config: Any) -> Chooser:
    one = Chooser(AdaSparkConfig(**config))
    if gains:
        one.gains = [Fixed(gain) for gain in gains]
    return one


def with_rate(one: Chooser, rate: float) -> Chooser:
    """After ten rounds at this rate."""
    for _ in range(10):
        one.rates.learn(BAND, 100.0 * rate, 100.0)
    return one


def choose(one: Chooser, tokens: list[float], ms: list[float]) -> int:
    return one.choose(BAND, np.array([2, 16]), np.array(tokens), np.array(ms), drafted=True).best


def test_before_anything_is_learned_rows_bring_their_survival() -> None:
    expected = chooser().expected(growth())
    assert expected == pytest.approx(1.0 + np.concatenate([[0.0], np.cumsum(FALLING)]))
    assert chooser().expected(growth(np.zeros(0))).tolist() == [1.0]


@pytest.mark.parametrize("requests", [1, 2])
def test_gains_scale_what_is_beyond_the_reference_and_what_is_given_up_below_it(requests: int) -> None:
    """Eq. 7 written out: 1 + S(n0) + g_d dS_d(n) + g_n dS_ng(n), with another pair of gains below n0."""
    grown = growth(requests=requests, text=5)
    gains = {True: (1.7, 0.5), False: (0.9, 0.6)}  # above: of drafted rows and of the text's; below
    expected = chooser(*gains[True], *gains[False]).expected(grown)
    n0 = 7 * requests
    for k in range(len(FALLING) + 1):
        by_hand = requests + FALLING[:n0].sum()
        for row in range(min(k, n0), max(k, n0)):
            sign = 1 if k > n0 else -1
            by_hand += sign * FALLING[row] * gains[k > n0][int(grown.of_text[row])] if row < len(FALLING) else 0.0
        assert expected[k] == pytest.approx(max(by_hand, requests)), k


def test_no_verify_is_expected_to_bring_less_than_its_anchors() -> None:
    assert chooser(1.0, 1.0, 4.0, 4.0).expected(growth()).min() == 1.0


def test_time_is_priced_at_the_long_run_rate_and_not_at_the_rounds_own_ratio() -> None:
    """§3.4 (i). In a round better than its band the ratio refuses rows worth buying, and in a worse one it buys rows
    that are not."""
    # Good: 4 tokens in 20 ms, 0.2 a ms; 2 more in 14 ms more are below that, and above a band's 0.1.
    good = [4.0, 6.0], [20.0, 34.0]
    # Bad: 1 token in 20 ms, 0.05 a ms; 1 more in 12 ms more is above that, and below a band's 0.1.
    bad = [1.0, 2.0], [20.0, 32.0]
    for (tokens, ms), by_ratio, by_rate in ((good, 0, 1), (bad, 1, 0)):
        assert choose(chooser(margin=0.0, ratio_margin=0.0), tokens, ms) == by_ratio
        assert choose(with_rate(chooser(margin=0.0), 0.1), tokens, ms) == by_rate


def test_a_rule_by_the_long_run_rate_is_faster_in_the_long_run() -> None:
    """Prop. 5 on rounds that are good or bad by turns: 5.6% here, and what the ratio chooses costs that."""
    good = [4.0, 6.0], [20.0, 34.0]
    bad = [1.0, 2.0], [20.0, 32.0]

    def long_run(one: Chooser, *, rated: bool) -> float:
        earned = took = 0.0
        for i in range(2000):
            tokens, ms = (good, bad)[i % 2]
            best = choose(one, tokens, ms)
            earned, took = earned + tokens[best], took + ms[best]
            if rated:
                one.rates.learn(BAND, tokens[best], ms[best])
        return earned / took

    exact = {"margin": 0.0, "ratio_margin": 0.0}
    rules = [(4 + 1) / 40, (6 + 1) / 54, (4 + 2) / 52, (6 + 2) / 66]
    assert long_run(chooser(**exact), rated=False) == pytest.approx(rules[2])
    assert long_run(chooser(**exact), rated=True) == pytest.approx(max(rules[:2]), rel=0.05)


def test_until_a_band_has_eight_rounds_the_ratio_decides_with_a_margin_of_four_percent() -> None:
    one = chooser()
    for count in range(10):
        assert (one.rates.rate(BAND) is None) == (count < 8)
        one.rates.learn(BAND, 1.0, 10.0)
    assert choose(chooser(), [1.03, 1.0], [10.0, 10.0]) == 1, "3% better: not enough"
    assert choose(chooser(), [1.05, 1.0], [10.0, 10.0]) == 0


def test_a_choice_that_differs_by_two_percent_does_not_flip() -> None:
    """§3.4 (iii): noise of 2% around equal values. Without the margin it flips."""

    def flips(one: Chooser) -> int:
        noise = np.random.default_rng(0).uniform(-0.02, 0.02, 200)
        chosen = [choose(with_rate(one, 0.1), [2.0 * (1.0 + n), 2.0], [20.0, 20.0]) for n in noise]
        return int(np.count_nonzero(np.diff(chosen)))

    assert flips(chooser()) == 0
    assert flips(chooser(margin=0.0)) > 20


def test_the_first_incumbent_is_the_widest() -> None:
    assert choose(with_rate(chooser(), 0.1), [2.0, 2.0], [20.0, 20.0]) == 1
    assert choose(with_rate(chooser(), 0.1), [2.1, 2.0], [20.0, 20.0]) == 0


def test_a_round_of_few_candidates_moves_no_incumbent() -> None:
    """The width that is held waits for candidates that fill it."""
    one = with_rate(chooser(), 0.1)
    assert choose(one, [1.0, 3.0], [20.0, 30.0]) == 1
    few = one.choose(BAND, np.array([2, 4]), np.array([1.0, 1.02]), np.array([20.0, 20.0]), drafted=True)
    assert few.best == 1, "what is left of the width that is held"
    level = np.full(3, 20.0)
    assert one.choose(BAND, np.array([2, 4, 16]), np.full(3, 3.0), level, drafted=True).best == 2


def test_rounds_with_a_draft_and_without_hold_a_width_each() -> None:
    one = with_rate(chooser(), 0.1)
    assert choose(one, [3.0, 1.0], [20.0, 30.0]) == 0
    plain = one.choose(BAND, np.array([2, 16]), np.array([2.0, 2.0]), np.array([20.0, 20.0]), drafted=False)
    assert plain.best == 1
    assert choose(one, [2.0, 2.0], [20.0, 20.0]) == 0


@pytest.mark.parametrize("rate", [None, 0.1])
def test_a_width_inside_a_gap_could_win_if_it_beats_the_choice_by_the_margin(rate: float | None) -> None:
    one = chooser() if rate is None else with_rate(chooser(), rate)
    choice = one.choose(BAND, np.array([2, 16]), np.array([2.0, 2.0]), np.array([20.0, 20.0]), drafted=True)
    could = one.could_win(choice, np.array([2.05, 2.2, 2.2]), np.array([20.0, 20.0, 30.0]))
    assert could.tolist() == [False, True, False]


def test_gains_are_learned_from_rows_above_the_reference_and_between_the_narrowest_and_it() -> None:
    """Of 20 rows all above n0 are right and none below it; the first two rows every width has."""
    one = chooser()
    accepted = np.arange(20) >= 7
    one.learn_gains(growth(text=3), accepted, narrowest=3)
    above_drafted, above_text, below_drafted, below_text = one.gains
    for gain, rows, hits in ((above_drafted, slice(7, 17), 10), (above_text, slice(17, 20), 3)):
        predicted = float(FALLING[rows].sum())
        assert gain.state()[0] == pytest.approx(predicted**2)
        assert gain.at(400.0) == pytest.approx(min(4.0, 1.0 + (hits - predicted) / predicted / 1.02), rel=0.01)
    assert below_drafted.state()[0] == pytest.approx(float(FALLING[2:7].sum()) ** 2)
    assert below_drafted.at(400.0) == 0.25
    assert below_text.state() == [0.0] * 5


def test_state_returns_and_damage_leaves_it_empty() -> None:
    one = with_rate(chooser(), 0.1)
    one.learn_gains(growth(), np.ones(20, np.bool_), narrowest=1)
    state, again = json.loads(json.dumps(one.state())), chooser()
    again.load(state)
    assert again.state() == one.state()
    assert again.rates.rate(BAND) == pytest.approx(0.1)
    for damaged in (None, {}, {**state, "gains": [[1.0] * 5]}, {**state, "rates": [[9, 1, 1.0, 0.0, 8]]}):
        with pytest.raises(DamagedState):
            again.load(damaged)
        assert again.state() == chooser().state()
