"""The low quantile of one-sided noise is the undisturbed time (AdaSpark Prop. 3), also as a law in context (Eq. 4)."""

from __future__ import annotations

import numpy as np
import pytest

from firesteel.fit.ftrl import Ftrl, FtrlConfig
from firesteel.fit.quantile import FLAT, basis, context_law, pinball, refit, step

SOLVER = FtrlConfig(rate=0.05, l1=0.002, l2=0.01, cap=400.0)
UNIT, TAU = 8192, 0.15


def fit(contexts: np.ndarray, y: np.ndarray, steps: int = 300, tau: float = TAU) -> np.ndarray:
    phi = basis(contexts, UNIT)[None]
    every = np.ones((1, len(y)), np.bool_)
    return refit(phi, y[None], every, np.array([FLAT]), tau=tau, solver=SOLVER, steps=steps)[0]


def test_pinball_by_hand() -> None:
    assert pinball([2.0, -2.0, 0.0], 0.15).tolist() == pytest.approx([0.3, 1.7, 0.0])


def test_the_basis_is_that_of_the_paper() -> None:
    np.testing.assert_allclose(basis(4096, UNIT), [1, 0.5, 0.25, np.sqrt(0.5), np.log(1.5)])
    assert basis([[0, 1, 2]], UNIT).shape == (1, 3, 5)


@pytest.mark.parametrize("undisturbed", [0.2, 0.5, 0.9])
def test_proposition_3(undisturbed: float) -> None:
    """tau = 0.15 finds the machine's time as soon as more rounds than that run free; the median and the mean do not."""
    chance = np.random.default_rng(0)
    y = 1.0 + np.where(chance.random(2000) < undisturbed, 0.0, chance.exponential(0.5, 2000))
    grid = np.arange(0.5, 2.0, 0.001)
    best = {tau: grid[np.argmin([pinball(y - t, tau).sum() for t in grid])] for tau in (TAU, 0.5)}
    assert best[TAU] == pytest.approx(1.0, abs=1e-9)
    assert y.mean() > 1.04
    if undisturbed < 0.5:
        assert best[0.5] > 1.1, "the premise of Prop. 3 does not hold for the median"


def test_refit_recovers_a_line_through_bursts() -> None:
    """Qwen3-4B's 8-row law of AdaSpark Table 1, in which the paper's own refit is up to 1.6% off its quantile."""
    chance = np.random.default_rng(0)
    contexts = np.concatenate([chance.uniform(c, 1.2 * c, 16) for c in (443, 1596, 8444)])
    truth = (24.7 + 1.28 * contexts / 1000) / 24.7
    disturbed = np.where(chance.random(48) < 0.4, chance.exponential(0.5, 48), 0.0)
    weights = fit(contexts, truth * (1.0 + disturbed))
    np.testing.assert_allclose(basis(contexts, UNIT) @ weights, truth, rtol=0.02)
    mean = fit(contexts, truth * (1.0 + disturbed), tau=0.5)
    assert np.abs(basis(contexts, UNIT) @ mean / truth - 1.0).max() < 0.2, "tau in the middle still sees the line"


def test_three_samples_in_two_bands_teach_a_slope() -> None:
    """A width that was only ever measured: online steps barely move its law, as many batch steps as for others do."""
    contexts = np.array([443.0, 450.0, 457.0, 8444.0, 8450.0, 8460.0])
    y = (24.7 + 1.28 * contexts / 1000) / 25.3
    np.testing.assert_allclose(basis(contexts, UNIT) @ fit(contexts, y), y, rtol=0.02)
    online = context_law(SOLVER)
    for phi, one in zip(basis(contexts, UNIT), y, strict=True):
        step(online, phi, one, TAU)
    assert (basis(8444, UNIT) @ online.weights) / y[3] < 0.85


def test_a_time_never_falls_with_context() -> None:
    contexts = np.linspace(100, 8000, 48)
    weights = fit(contexts, 2.0 - contexts / 8192)
    assert (weights[1:] == 0.0).all()


def test_laws_fitted_together_are_laws_fitted_alone() -> None:
    """Padding and company change nothing."""
    chance = np.random.default_rng(1)
    contexts = chance.uniform(100, 9000, (2, 20))
    y = 1.0 + contexts / 9000 * np.array([[0.2], [0.7]])
    train = np.ones((2, 20), np.bool_)
    train[1, 12:] = False
    start = np.array([FLAT, [0.9, 0.1, 0.0, 0.0, 0.0]])
    together = refit(basis(contexts, UNIT), y, train, start, tau=TAU, solver=SOLVER, steps=50)
    alone = [
        refit(basis(c[None, m], UNIT), v[None, m], m[None, m], s[None], tau=TAU, solver=SOLVER, steps=50)[0]
        for c, v, m, s in zip(contexts, y, train, start, strict=True)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-9)


def test_the_online_law_follows_a_drift() -> None:
    """With the rate floored, a law that has seen much still moves; without, it hardly does."""

    def after_drift(cap: float) -> float:
        law = Ftrl(FLAT, FtrlConfig(rate=0.05, cap=cap), non_negative=[False, True, True, True, True])
        phi = basis(500, UNIT)
        for y in (1.0, 1.2):
            for _ in range(8000 if y == 1.0 else 500):
                step(law, phi, y, TAU)
        return float(phi @ law.weights)

    assert after_drift(400.0) == pytest.approx(1.2, abs=0.02)
    assert after_drift(float("inf")) < after_drift(400.0)
