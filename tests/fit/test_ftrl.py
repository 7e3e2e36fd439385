"""FTRL-Proximal against the objective it minimises, and what was added to it: floor, prior, gate, bounds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from firesteel.errors import DamagedState, InvalidParameter
from firesteel.fit.ftrl import Ftrl, FtrlConfig

CHANCE = np.random.default_rng(0)


def minimiser(config: FtrlConfig, gradients: list[float], deviations: list[float], lowest: float) -> float:
    """The next deviation by its definition, on a grid of 1e-4."""
    d = np.arange(max(lowest, -1.5), 1.5, 1e-4)
    objective = config.l1 * np.abs(d) + config.l2 * d**2 + 0.5 * config.stabiliser / config.rate * d**2
    squares = 0.0
    for g, at in zip(gradients, deviations, strict=True):
        sigma = (np.sqrt(squares + g * g) - np.sqrt(squares)) / config.rate
        squares += g * g
        objective = objective + g * d + 0.5 * sigma * (d - at) ** 2
    return float(d[np.argmin(objective)])


@pytest.mark.parametrize("l1", [0.0, 0.4])
@pytest.mark.parametrize("l2", [0.0, 2.0])
def test_each_step_minimises_the_objective(l1: float, l2: float) -> None:
    """A factor of 2 lost in l2, or an l1 applied per step, moves the weights by far more than the grid."""
    config = FtrlConfig(rate=0.2, l1=l1, l2=l2)
    learner = Ftrl([0.3], config)
    gradients, deviations = [], []
    for g in CHANCE.normal(0.3, 1.0, 40).tolist():
        gradients.append(g)
        deviations.append(float(learner.weights[0] - 0.3))
        learner.update([g])
        assert learner.weights[0] - 0.3 == pytest.approx(minimiser(config, gradients, deviations, -9.0), abs=2e-4)


def test_the_cap_floors_the_step() -> None:
    capped, free = (Ftrl([0.0], FtrlConfig(rate=0.05, cap=cap)) for cap in (4.0, float("inf")))
    for learner in (capped, free):
        for g in np.tile([1.0, -1.0], 5000):
            learner.update([g])
    steps = []
    for learner in (capped, free):
        before = learner.weights[0]
        learner.update([1.0])
        steps.append(before - learner.weights[0])
    assert steps[0] == pytest.approx(0.05 / (1 + 2))
    assert steps[1] < 0.05 / 90


def test_gradients_taken_together_are_squared_and_counted_one_by_one() -> None:
    """At the prior, where the weights do not move in between, that is the same as one after another."""
    together, one_by_one = (Ftrl(np.zeros(2), FtrlConfig(rate=0.1, gate=3.0)) for _ in range(2))
    gradients = np.array([[1.0, 0.5], [-2.0, 0.5], [0.0, 0.5]])
    together.update_together(gradients)
    for g in gradients:
        one_by_one.update(g)
    assert together.state() == one_by_one.state()
    assert together.squares.tolist() == [5.0, 0.75]
    assert together.updates.tolist() == [2.0, 3.0]
    together.update_together(np.tile([0.0, 0.5], (40, 1)))
    assert together.weights[0] == 0.0
    assert together.weights[1] < 0.0


def test_a_weight_under_l1_stays_at_its_prior() -> None:
    learner = Ftrl([0.7], FtrlConfig(rate=0.1, l1=5.0))
    for _ in range(4):
        learner.update([1.0])
    assert learner.weights[0] == 0.7
    for _ in range(4):
        learner.update([1.0])
    assert learner.weights[0] < 0.7


def test_the_gate_opens_on_evidence_and_not_on_noise() -> None:
    """Of 400 fair coins over 400 updates, 3 sqrt m lets a few through (|z| > 3 at some time); a biased one leaves."""
    config = FtrlConfig(rate=0.05, gate=3.0)
    fair, biased = Ftrl(np.zeros(400), config), Ftrl(np.zeros(1), config)
    for _ in range(400):
        fair.update(CHANCE.choice([-1.0, 1.0], 400))
        biased.update(CHANCE.choice([-1.0, 1.0, 1.0], 1))
    assert (fair.weights != 0.0).mean() < 0.05
    assert biased.weights[0] < 0.0


def test_an_open_gate_stays_open() -> None:
    learner = Ftrl([0.0], FtrlConfig(rate=0.05, gate=3.0))
    for _ in range(10):
        learner.update([1.0])
    assert learner.weights[0] < 0.0, "10 > 3 sqrt 10"
    for g in np.tile([0.01, -0.01], 2000):
        learner.update([g])
    assert learner.weights[0] < 0.0


def test_no_gradient_is_no_update() -> None:
    learner = Ftrl([0.0, 0.0], FtrlConfig(rate=0.05, gate=3.0))
    for _ in range(100):
        learner.update([0.0, 1.0])
    assert learner.updates.tolist() == [0.0, 100.0]
    for _ in range(10):
        learner.update([1.0, 0.0])
    assert learner.weights[0] < 0.0, "its 10 updates count alone"


def test_non_negative_weights_stop_at_zero_and_leave_it_at_once() -> None:
    learner = Ftrl([0.01, 0.01], FtrlConfig(rate=0.05, cap=4.0), non_negative=[True, False])
    for _ in range(1000):
        learner.update([1.0, 1.0])
    assert learner.weights[0] == 0.0
    assert learner.weights[1] < -1.0
    learner.update([-1.0, -1.0])
    assert learner.weights[0] == pytest.approx(0.05 / 3, rel=0.1)
    with pytest.raises(InvalidParameter):
        Ftrl([-1.0], FtrlConfig(rate=0.1), non_negative=True)


def test_coordinates_learn_alone() -> None:
    """Through an index, in full with zeros, or one learner each: the same weights."""
    config = FtrlConfig(rate=0.3, l1=0.1, l2=0.1, cap=9.0, gate=1.0)
    whole, some, each = Ftrl(np.zeros(3), config), Ftrl(np.zeros(3), config), [Ftrl(0.0, config) for _ in range(3)]
    for _ in range(200):
        chosen = CHANCE.permutation(3)[:2]
        g = CHANCE.normal(0.4, 1.0, 2)
        full = np.zeros(3)
        full[chosen] = g
        whole.update(full)
        some.update(g, at=chosen)
        for i, one in zip(chosen, g, strict=True):
            each[i].update(one, at=())
    np.testing.assert_allclose(some.weights, whole.weights, rtol=1e-12)
    np.testing.assert_allclose([one.weights for one in each], whole.weights, rtol=1e-12)


def test_a_moved_learner_goes_on_from_there_at_its_rate() -> None:
    learner = Ftrl([0.0, 0.0], FtrlConfig(rate=0.3, l1=0.1, l2=0.5, cap=9.0))
    for g in CHANCE.normal(0.4, 1.0, (100, 2)):
        learner.update(g)
    moved = Ftrl([0.0, 0.0], learner.config)
    moved.load(learner.state())
    moved.move([1.0, -2.0])
    assert moved.weights.tolist() == [1.0, -2.0]
    before, steps = learner.weights.copy(), [0.01, -0.01]
    learner.update(steps)
    moved.update(steps)
    np.testing.assert_allclose(moved.weights - [1.0, -2.0], learner.weights - before, rtol=1e-9)


def test_state_survives_json() -> None:
    config = FtrlConfig(rate=0.3, l1=0.1, cap=9.0, gate=1.0)
    learner, again = Ftrl(np.zeros((2, 3)), config), Ftrl(np.zeros((2, 3)), config)
    gradients = CHANCE.normal(0.4, 1.0, (40, 2, 3))
    for g in gradients[:20]:
        learner.update(g)
    again.load(json.loads(json.dumps(learner.state())))
    for g in gradients[20:]:
        learner.update(g)
        again.update(g)
    assert again.weights.tolist() == learner.weights.tolist()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weights", [1.0]),
        ("squares", [-1.0, 0.0]),
        ("linear", [float("nan"), 0.0]),
        ("updates", "many"),
        ("open", None),
    ],
)
def test_a_damaged_state_is_refused_whole(key: str, value: object) -> None:
    learner = Ftrl([0.0, 0.0], FtrlConfig(rate=0.1))
    learner.update([1.0, 1.0])
    before = learner.state()
    with pytest.raises(DamagedState, match=key):
        learner.load(learner.state() | {key: value})
    with pytest.raises(DamagedState):
        learner.load([1, 2])
    assert learner.state() == before


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidParameter):
        FtrlConfig(rate=0.0)
    with pytest.raises(InvalidParameter):
        FtrlConfig(rate=0.1, l2=-1.0)
