"""The fit: what it learns of made-up targets, what it keeps per request, and what survives a restart."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firesteel.accept.base import labels_of
from firesteel.accept.config import AcceptanceConfig
from firesteel.accept.guard import log_loss
from firesteel.accept.multinomial import Multinomial
from firesteel.accept.terms import AGREED, NO_BUCKET, PICK, PRIOR
from firesteel.candidates import Candidates
from firesteel.errors import DamagedState
from tests.accept.synthetic import NOTHING, answer, copy, drawn, made, serve, view_of


def truth_of(**changes: Any) -> Multinomial:
    """A model whose prices are the truth: the prior, but for the given weights of `terms` and `buckets`."""
    truth = Multinomial()
    for name, weights in changes.items():
        for place, weight in weights.items():
            getattr(truth, name).weights[place] = weight
    return truth


def losses(model: Multinomial, truth: Multinomial, seed: int = 99, **view: Any) -> tuple[float, float, float]:
    """Log loss per labelled node on fresh rounds of a fresh request: of the fit, of the head, of the truth."""
    chance, sums, count = np.random.default_rng(seed), np.zeros(3), 0
    for _ in range(200):
        one = drawn(chance, view_of("fresh", **view))
        q = truth.fitted(one)
        labels = labels_of(one, *answer(chance, one, q))
        for i, price in enumerate((model.fitted(one), model.by_head(one), q)):
            sums[i] += log_loss(price[labels.rows], labels.right)
        count += len(labels.rows)
    fitted, head, best = sums / count
    return fitted, head, best


def test_the_fit_comes_near_the_truth_and_leaves_the_head_behind() -> None:
    """The target's law is a multinomial of the same form, far from the prior; requests of 40 rounds."""
    chance = np.random.default_rng(1)
    truth = Multinomial()
    truth.terms.weights += np.array([-0.6, -0.5, 0.6, 0, 0, -0.2, 0.5, 0.4, -0.3, 0.2, 0, 0, 0, 0, 0])
    truth.buckets.weights[:NO_BUCKET] = chance.normal(0, 0.7, NO_BUCKET)
    model = Multinomial()
    before, head, best = losses(model, truth)
    serve(model, truth, 2500, lambda i: drawn(chance, view_of(f"r{i // 40}", context=i % 40 * 50)))
    after, _, _ = losses(model, truth)
    assert best < after < head
    assert after - best < 0.25 * min(before - best, head - best), (before, head, after, best)


def test_at_the_prior_nothing_is_learned_from_a_target_that_agrees_with_it() -> None:
    """3 sqrt m holds nearly every weight where it belongs; without the gate they all wander."""
    chance, free = np.random.default_rng(2), Multinomial(AcceptanceConfig(gate=0.0))
    gated = Multinomial()
    for model in (gated, free):
        serve(model, Multinomial(), 400, lambda i: drawn(chance, view_of(f"r{i}")))
    moved = [
        np.mean(model.terms.weights != PRIOR) + np.mean(model.buckets.weights[:NO_BUCKET] != 0)
        for model in (gated, free)
    ]
    assert moved[0] < 0.2
    assert moved[1] > 1.0


def test_a_head_that_promises_too_much_is_corrected() -> None:
    """Picks of head 0.9 are kept every second time."""
    chance, model = np.random.default_rng(3), Multinomial()
    one = made([[0.8, 0.1, 0.05]], [0.9])
    assert model.fitted(one)[1] == pytest.approx(0.9)
    for i in range(600):
        right = 1 if chance.random() < 0.5 else NOTHING
        fresh = replace(one, view=view_of(f"r{i}"))
        model.learn(fresh, np.array([0, 1] if right == 1 else [0]), np.array([right, NOTHING][: 1 + (right == 1)]))
    assert model.fitted(replace(one, view=view_of("new")))[1] == pytest.approx(0.5, abs=0.06)
    assert model.guard.trusts_fit
    assert not model.buckets.weights.any(), "no bucket had a part in it"


def test_agreement_is_learned_and_only_of_what_agreed() -> None:
    """Agreed picks are kept more often than logit p_src says; the weight goes to their bucket, and to no other."""
    chance, truth = np.random.default_rng(4), truth_of(buckets={AGREED + 2 * 1: 1.5})
    model = Multinomial()
    probs, head = [[0.6, 0.2, 0.1]], [0.4]
    agreed, plain = made(probs, head, p_src=0.6, agreed={1: copy(8)}), made(probs, head, p_src=0.6)
    before = model.fitted(agreed)[1]
    serve(model, truth, 1000, lambda i: replace(agreed if chance.random() < 0.5 else plain, view=view_of(f"r{i}")))
    new = view_of("new")
    want = truth.fitted(agreed)[1]
    got = model.fitted(replace(agreed, view=new))[1]
    assert abs(got - want) < 0.35 * abs(before - want), (before, got, want)
    assert model.fitted(replace(plain, view=new))[1] == pytest.approx(truth.fitted(plain)[1], abs=0.05)
    assert np.flatnonzero(model.buckets.weights).tolist() == [AGREED + 2]


def test_an_n_gram_bucket_that_is_worth_nothing_is_learned() -> None:
    chance, truth = np.random.default_rng(5), truth_of(buckets={1: -2.0})
    model = Multinomial()
    one, other = made([], [], p_src=0.7, hung=[(0, copy(8))]), made([], [], p_src=0.7, hung=[(0, copy(40))])
    serve(model, truth, 600, lambda i: replace(one if chance.random() < 0.5 else other, view=view_of(f"r{i}")))
    assert model.fitted(replace(one, view=view_of("new")))[1] == pytest.approx(truth.fitted(one)[1], abs=0.08)
    assert model.fitted(replace(other, view=view_of("new")))[1] == pytest.approx(0.7, abs=0.08)


def test_temperature_is_known_so_that_greedy_and_sampled_requests_do_not_share_a_mean() -> None:
    """Sampled requests keep far fewer picks. Blind to temperature, the fit prices either kind by the mixture."""
    chance, truth = np.random.default_rng(6), truth_of(terms={PICK.start + 4: -2.0})
    model, blind = Multinomial(), Multinomial()
    for i in range(2000):
        one = drawn(chance, view_of(f"r{i // 20}", temperature=float(i // 20 % 2)))
        kept, wanted = answer(chance, one, truth.fitted(one))
        model.learn(one, kept, wanted)
        blind.learn(replace(one, view=view_of(f"r{i // 20}")), kept, wanted)
    for temperature in (0.0, 1.0):
        seeing, _, best = losses(model, truth, temperature=temperature)
        # What the blind one would pay: its price of the same candidates as if they were greedy.
        chance, paid, count = np.random.default_rng(99), 0.0, 0
        for _ in range(200):
            one = drawn(chance, view_of("fresh", temperature=temperature))
            labels = labels_of(one, *answer(chance, one, truth.fitted(one)))
            price = blind.fitted(replace(one, view=view_of("fresh")))
            paid, count = paid + log_loss(price[labels.rows], labels.right), count + len(labels.rows)
        assert seeing - best < 0.5 * (paid / count - best), temperature


def test_the_guard_leaves_a_fit_that_is_worse_and_comes_back() -> None:
    """Weights gone wrong price worse than the head; the labels of a few hundred parents decide, both ways."""
    chance, truth, model = np.random.default_rng(7), Multinomial(), Multinomial()
    one = drawn(chance)
    assert model.price(one).tolist() == model.by_head(one).tolist()
    serve(model, truth, 300, lambda i: drawn(chance, view_of(f"r{i}")))
    assert model.guard.trusts_fit
    assert model.price(one).tolist() == model.fitted(one).tolist()
    good = deepcopy(model.terms)
    model.terms.weights = model.terms.weights + np.array([3.0, *[0] * 14])

    def frozen(i: int) -> Candidates:
        model.terms.weights = wrong.copy()
        return drawn(chance, view_of(f"s{i}"))

    wrong = model.terms.weights
    serve(model, truth, 300, frozen)
    assert not model.guard.trusts_fit
    assert model.price(one).tolist() == model.by_head(one).tolist()
    model.terms = good
    serve(model, truth, 900, lambda i: drawn(chance, view_of(f"t{i}")))
    assert model.guard.trusts_fit


def test_the_guard_scores_before_anyone_learns() -> None:
    model, one = Multinomial(), made([[0.6, 0.2]], [0.7])
    model.learn(one, np.array([0]), np.array([NOTHING]))
    assert model.guard.fitted == pytest.approx(-np.log(0.3) - np.log(1 - 0.15))
    assert model.guard.head == pytest.approx(-np.log(0.3) - np.log(0.75))


def test_what_is_of_a_request_alone_ends_with_it() -> None:
    model, one = Multinomial(), made([[0.6]], [0.7])
    other = replace(one, view=view_of("other"))
    for _ in range(30):
        model.learn(one, np.array([0]), np.array([NOTHING]))
    assert model.fitted(one)[1] < model.fitted(other)[1], "its intercept follows it, and no other"
    assert model.by_head(one)[1] < model.by_head(other)[1], "and its offset"
    model.forget("r")
    model.forget("never heard of")
    assert model.fitted(one).tolist() == model.fitted(other).tolist()
    assert model.by_head(one).tolist() == model.by_head(other).tolist()


def test_requests_do_not_pile_up() -> None:
    """Pricing makes no entry, and of those that nobody forgets the oldest go; one heard of again is not the oldest."""
    model, one = Multinomial(AcceptanceConfig(requests=3)), made([[0.6, 0.2]], [0.7])
    for i in range(10):
        model.price(replace(one, view=view_of(f"p{i}")))
    assert not model._requests
    for name in ("a", "b", "c", "a", "d"):
        model.learn(replace(one, view=view_of(name)), np.array([0]), np.array([NOTHING]))
    assert list(model._requests) == ["c", "a", "d"]


def test_a_model_goes_on_after_a_restart_as_if_nothing_had_been() -> None:
    chance, truth = np.random.default_rng(8), truth_of(terms={0: -1.0}, buckets={AGREED + 2: 1.0})
    model = Multinomial()
    serve(model, truth, 300, lambda i: drawn(chance, view_of(f"r{i}")))
    restarted = Multinomial()
    restarted.load(json.loads(json.dumps(model.state())))
    for each in (model, restarted):
        again = np.random.default_rng(9)
        serve(each, truth, 100, lambda i, again=again: drawn(again, view_of(f"s{i}")))
    assert restarted.state() == model.state()
    one = drawn(np.random.default_rng(10), view_of("new"))
    assert restarted.price(one).tolist() == model.price(one).tolist()


def damaged(state: dict[str, Any]) -> list[Any]:
    """What a file may hold that is not a state."""
    cut = deepcopy(state)
    cut["buckets"]["weights"] = cut["buckets"]["weights"][:-1]
    wild = deepcopy(state)
    wild["terms"]["weights"][3] = float("nan")
    lacking = {key: value for key, value in state.items() if key != "labels"}
    return [None, [], {}, cut, wild, lacking, state | {"guard": {"fitted": "low", "head": 1.0}}]


def test_a_damaged_state_is_refused_and_leaves_the_prior() -> None:
    chance, truth = np.random.default_rng(11), truth_of(terms={0: -1.0})
    model = Multinomial()
    serve(model, truth, 300, lambda i: drawn(chance, view_of(f"r{i}")))
    state = json.loads(json.dumps(model.state()))
    for wrong in damaged(state):
        model.load(state)
        assert model.state() == state
        with pytest.raises(DamagedState):
            model.load(wrong)
        assert model.state() == Multinomial().state()
