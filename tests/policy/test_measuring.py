"""The budget of measurements."""

from __future__ import annotations

import numpy as np
import pytest

from firesteel.policy.measuring import Measuring


def test_measurements_may_lose_a_share_of_all_time() -> None:
    measuring = Measuring(0.01, 0.03)
    assert measuring.take(0.0), "what loses nothing needs no time"
    assert not measuring.take(1.0)
    measuring.elapsed_ms = 1000.0
    assert measuring.take(6.0)
    assert not measuring.take(6.0)
    assert measuring.take(4.0), "a refusal spends nothing"
    measuring.elapsed_ms = 2000.0
    assert measuring.take(10.0)


@pytest.mark.parametrize(
    ("rows", "guess"),
    [
        (6, 24.0),  # between 4 and 8: on their line
        (16, 44.0),  # beyond 8: on the line through 4 and 8
        (2, 20.0),  # below the narrowest: no less than that one
    ],
)
def test_a_width_is_guessed_along_the_line_of_its_neighbours(rows: int, guess: float) -> None:
    widths, ms = np.array([3, 4, 8]), np.array([20.0, 20.0, 28.0])
    assert Measuring(0.01, 0.03).guess_ms(rows, widths, ms) == pytest.approx(guess)


def test_beside_one_known_width_a_row_costs_a_share_of_it() -> None:
    assert Measuring(0.01, 0.03).guess_ms(11, np.array([1]), np.array([20.0])) == pytest.approx(26.0)
