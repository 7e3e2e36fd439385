"""Rates by band, and gains as lines in context."""

from __future__ import annotations

import numpy as np
import pytest

from firesteel.errors import DamagedState
from firesteel.policy.rates import BandRates, Gain

CLAMP = (0.25, 4.0)


def test_a_rate_is_tokens_over_time_and_both_fade() -> None:
    """Half of it is forgotten after 64 rounds. A mean of ratios would be another number."""
    rates = BandRates(64, 8)
    for tokens, ms in [(1.0, 10.0), (9.0, 30.0)] * 4:
        rates.learn((8, 1), tokens, ms)
    assert rates.rate((8, 1)) == pytest.approx(40.0 / 160.0, rel=0.02)
    fresh = BandRates(64, 1)
    fresh.learn((8, 1), 0.0, 1000.0)
    for _ in range(64):
        fresh.learn((8, 1), 0.0, 1e-9)
    fresh.learn((8, 1), 100.0, 1e-9)
    assert fresh.rate((8, 1)) == pytest.approx(100.0 / 500.0, rel=0.02)


def test_a_band_is_known_after_eight_rounds_and_says_nothing_of_others() -> None:
    rates = BandRates(64, 8)
    for count in range(9):
        assert (rates.rate((8, 1)) is not None) == (count >= 8)
        rates.learn((8, 1), 2.0, 20.0)
    assert rates.rate((9, 1)) is None
    assert rates.rate((8, 2)) is None


@pytest.mark.parametrize("damage", [None, [[8, 1, 1.0, 0.0, 8]], [[8, 1, -1.0, 1.0, 8]], [[8, 1]], [[1, 1, "x", 1, 1]]])
def test_damaged_rates_are_refused(damage: object) -> None:
    rates = BandRates(64, 8)
    rates.learn((8, 1), 1.0, 10.0)
    state = rates.state()
    with pytest.raises(DamagedState):
        rates.load(damage)
    assert rates.state() == state
    again = BandRates(64, 8)
    again.load(state)
    assert again.state() == state


def test_a_gain_is_a_line_in_context() -> None:
    """1.7 at no context and 0.9 at 8192 tokens; the ridge pulls it a little towards 1."""
    gain = Gain(8192, CLAMP, 0.02, 10**9)
    dice = np.random.default_rng(0)
    for _ in range(2000):
        context, predicted = float(dice.uniform(0, 8192)), float(dice.uniform(0.2, 2.0))
        gain.learn(predicted, predicted * (1.7 - 0.8 * context / 8192) + float(dice.normal(0, 0.3)), context)
    assert gain.at(0.0) == pytest.approx(1.7, abs=0.12)
    assert gain.at(8192.0) == pytest.approx(0.9, abs=0.12)


def test_a_gain_is_least_squares_with_a_ridge_that_pulls_to_one() -> None:
    """At one context, by hand: 1 + sum p (r - p) / (1.02 sum p p), shared between constant and slope."""
    gain = Gain(8192, CLAMP, 0.0, 10**9)
    gain.learn(1.0, 2.0, 0.0)
    gain.learn(2.0, 2.0, 0.0)
    assert gain.at(0.0) == pytest.approx(1.0 + 1.0 / 5.0)
    ridge = Gain(8192, CLAMP, 1.0, 10**9)
    ridge.learn(1.0, 2.0, 0.0)
    ridge.learn(2.0, 2.0, 0.0)
    assert ridge.at(0.0) == pytest.approx(1.0 + 0.5 / 5.0)


def test_a_gain_stays_within_its_clamp_and_starts_at_one() -> None:
    gain = Gain(8192, CLAMP, 0.02, 1024)
    assert gain.at(0.0) == gain.at(1e6) == 1.0
    for _ in range(50):
        gain.learn(1.0, 0.0, 500.0)
    assert gain.at(500.0) == 0.25
    for _ in range(5000):
        gain.learn(0.1, 1.0, 500.0)
    assert gain.at(500.0) == 4.0


def test_old_observations_fade() -> None:
    gain = Gain(8192, CLAMP, 0.0, 64)
    for _ in range(500):
        gain.learn(1.0, 0.5, 500.0)
    for _ in range(64):
        gain.learn(1.0, 1.5, 500.0)
    assert gain.at(500.0) == pytest.approx(1.0, abs=0.02)
