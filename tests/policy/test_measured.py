"""The two models behind `auto`: what rounds cost and what candidates are worth. No clock but a scripted one."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from firesteel.policy.measured import LADDER, AcceptCounts, RoundCosts, class_of


def prices(costs: RoundCosts, *rows: int) -> list[float]:
    return costs.ms(np.array(rows)).tolist()


def taught(times: dict[int, float], rounds: int = 8) -> RoundCosts:
    costs = RoundCosts(slope=0.03)
    for _ in range(rounds):
        for rows, ms in times.items():
            costs.learn(rows, ms)
    return costs


def test_classes_cover_every_width() -> None:
    assert LADDER[:8] == (1, 2, 3, 4, 6, 8, 12, 16)
    for rows in range(1, 300):
        top = LADDER[class_of(rows)]
        assert rows <= top <= max(rows * 1.5, rows + 1)
    assert class_of(10**6) == len(LADDER) - 1


def test_before_any_measurement_a_row_costs_the_default_slope() -> None:
    assert prices(RoundCosts(slope=0.03), 1, 2, 4) == pytest.approx([1.0, 1.03, 1.09])


def test_measured_widths_have_their_price_and_others_what_their_neighbours_say() -> None:
    costs = taught({1: 10.0, 4: 16.0, 16: 22.0})
    assert prices(costs, 1, 4, 16) == pytest.approx([10, 16, 22])
    assert prices(costs, 2, 8) == pytest.approx([12, 18])
    beyond = prices(costs, 32)[0]
    assert beyond == pytest.approx(22 + 16 * 0.5), "at the measured slope, which is above the default"


def test_steps_need_not_rise() -> None:
    assert prices(taught({1: 10.0, 8: 30.0, 12: 20.0}), 8, 12) == pytest.approx([30, 20])


def test_one_dear_measurement_does_not_close_a_class_and_two_do() -> None:
    costs = taught({1: 10.0})
    guess = prices(costs, 4)[0]
    costs.learn(4, 300.0)
    assert prices(costs, 4)[0] == pytest.approx(guess)
    assert not costs.believed(4)
    costs.learn(4, 300.0)
    assert prices(costs, 4)[0] == pytest.approx(300.0)


def test_one_cheap_measurement_is_believed() -> None:
    costs = taught({1: 10.0})
    assert costs.reach == 4
    costs.learn(4, 11.0)
    assert costs.believed(4)
    assert costs.reach == 16


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 20])
@pytest.mark.parametrize("rows", [1, 8])
def test_one_outlier_moves_no_price_by_more_than_a_few_hundredths(rounds: int, rows: int) -> None:
    times = {1: 10.0, 8: 12.0}
    costs = taught(times, rounds)
    costs.learn(rows, 30 * times[rows])
    for _ in range(3):  # whichever place the outlier had among the first
        costs.learn(1, 10.0)
        costs.learn(8, 12.0)
    assert prices(costs, 1, 8) == pytest.approx([10.0, 12.0], rel=0.03)


def test_a_slower_machine_is_noticed_within_eight_rounds_by_the_widths_that_did_not_run_too() -> None:
    costs = taught({1: 10.0, 8: 12.0})
    for _ in range(8):
        costs.learn(8, 24.0)
    one, eight = prices(costs, 1, 8)
    assert eight == pytest.approx(24.0, rel=0.06)
    assert one == pytest.approx(20.0, rel=0.1)
    for _ in range(8):
        costs.learn(8, 12.0)
    assert prices(costs, 1) == pytest.approx([10.0], rel=0.1)


def test_after_a_shift_of_the_level_an_idle_width_is_to_be_measured_again() -> None:
    costs = taught({1: 10.0, 8: 12.0})
    for _ in range(20):
        costs.learn(8, 12.0)
    assert not costs.shifted(1)
    for _ in range(20):
        costs.learn(8, 30.0)
    assert costs.shifted(1)
    costs.learn(1, 10.0)  # only the wide rounds had slowed: time won is believed at once
    assert not costs.shifted(1)
    assert prices(costs, 1)[0] == pytest.approx(10.0, rel=0.25)


def test_prices_stay_put_under_noise() -> None:
    dice, costs = random.Random(0), RoundCosts(slope=0.03)
    for _ in range(3000):
        rows = dice.choice([1, 1, 1, 8])
        costs.learn(rows, {1: 10.0, 8: 12.0}[rows] * (1 + 0.2 * abs(dice.gauss(0, 1))))
    one, eight = prices(costs, 1, 8)
    assert eight / one == pytest.approx(1.2, rel=0.15)


def test_costs_survive_json() -> None:
    costs, again = taught({1: 10.0, 8: 12.0}), RoundCosts(slope=0.03)
    again.load(json.loads(json.dumps(costs.state())))
    assert prices(again, *range(1, 40)) == pytest.approx(prices(costs, *range(1, 40)))


def test_an_unseen_kind_has_its_raw_price_and_outcomes_replace_it() -> None:
    counts = AcceptCounts()
    assert counts.price("r", ["copy"], [0.8]).tolist() == pytest.approx([0.8])
    for _ in range(40):
        counts.learn("r", "copy", False)
    assert counts.price("r", ["copy"], [0.8])[0] < 0.05


def test_requests_share_what_they_know_and_keep_what_is_their_own() -> None:
    counts = AcceptCounts()
    for _ in range(60):
        counts.learn("a", "copy", True)
        counts.learn("b", "copy", False)
    a, b, new = (counts.price(name, ["copy"], [0.5])[0] for name in ("a", "b", "new"))
    assert a > 0.9
    assert b < 0.1
    assert new == pytest.approx(0.5, abs=0.05)


def test_old_outcomes_fade() -> None:
    counts = AcceptCounts()
    for _ in range(500):
        counts.learn("r", "copy", True)
    for _ in range(150):
        counts.learn("r", "copy", False)
    assert counts.price("r", ["copy"], [0.5])[0] < 0.2


def test_forgotten_requests_take_no_memory() -> None:
    counts = AcceptCounts()
    for i in range(counts.REQUESTS + 50):
        counts.learn(str(i), "copy", True)
    assert len(counts._requests) == counts.REQUESTS
    assert "0" not in counts._requests
