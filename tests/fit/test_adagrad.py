"""AdaGrad: steps by hand, the band, the floor of the rate."""

from __future__ import annotations

import numpy as np
import pytest

from firesteel.fit.adagrad import AdaGrad, AdaGradConfig


def test_steps_by_hand() -> None:
    number = AdaGrad(AdaGradConfig(rate=0.5, band=9.0))
    number.update(np.array([3.0]))
    assert number.value == pytest.approx(-0.5)
    number.update(np.array([-4.0]))
    assert number.value == pytest.approx(-0.5 + 0.5 * 4 / 5)
    number.update(np.array([1.0, 1.0, -12.0]))  # together: squared one by one
    assert number.value == pytest.approx(-0.1 + 0.5 * 10 / np.sqrt(25 + 146))


def test_nothing_moves_without_a_gradient() -> None:
    number = AdaGrad(AdaGradConfig(rate=0.5, band=9.0))
    number.update(np.zeros(2))
    number.update(np.zeros(0))
    assert number.value == 0.0


def test_the_band_holds_and_the_cap_floors_the_rate() -> None:
    capped, free = (AdaGrad(AdaGradConfig(rate=0.15, band=2.0, cap=cap)) for cap in (16.0, float("inf")))
    for number in (capped, free):
        for _ in range(1000):
            number.update(np.array([1.0]))
        assert number.value == -2.0
        number.update(np.array([-1.0]))
    assert capped.value == pytest.approx(-2.0 + 0.15 / 4)
    assert free.value < -2.0 + 0.15 / 30
