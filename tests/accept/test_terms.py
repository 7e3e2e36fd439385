"""Eq. 6 by hand: the prior from the features' definitions, what the sources say of each other, and the softmax."""

from __future__ import annotations

from math import log, log2

import numpy as np
import pytest

from firesteel.accept.config import AcceptanceConfig
from firesteel.accept.multinomial import Multinomial
from firesteel.accept.terms import NGRAM, NO_BUCKET, PICK, SIBLING, terms_of
from firesteel.errors import InvalidParameter
from tests.accept.synthetic import copy, drawn, follower, made, view_of

CONFIG = AcceptanceConfig()


def odds(p: float) -> float:
    return p / (1 - p)


def test_at_the_prior_a_pick_is_worth_its_head_and_half_of_the_rest_is_its_siblings() -> None:
    q = Multinomial().fitted(made([[0.6, 0.2, 0.1], [0.5, 0.3, 0.1]], [0.7, 0.9]))
    np.testing.assert_allclose(q, [1, 0.7, 0.15 * 2 / 3, 0.15 / 3, 0.9, 0.05 * 3 / 4, 0.05 / 4], rtol=1e-12)


def test_without_siblings_a_pick_is_worth_its_head_too() -> None:
    np.testing.assert_allclose(Multinomial().fitted(made([[0.6], [0.5]], [0.7, 0.9])), [1, 0.7, 0.9], rtol=1e-12)


def test_an_n_gram_row_alone_is_worth_its_sources_precision() -> None:
    alone = made([], [], p_src=0.8, hung=[(0, copy()), (1, copy(9, 1))])
    np.testing.assert_allclose(Multinomial().fitted(alone), [1, 0.8, 0.8], rtol=1e-12)
    beside = made([], [], p_src=0.8, hung=[(0, copy()), (0, follower(3))])
    np.testing.assert_allclose(Multinomial().fitted(beside), [1, 4 / 9, 4 / 9], rtol=1e-12)


def test_an_agreed_pick_has_its_odds_multiplied_and_its_siblings_theirs_divided() -> None:
    q = Multinomial().fitted(made([[0.6, 0.2, 0.1]], [0.7], p_src=0.8, agreed={1: copy()}))
    scores = np.array([2 * odds(0.7) * 4, 2 / 3 / 4, 1 / 3 / 4])
    np.testing.assert_allclose(q[1:], scores / (1 + scores.sum()), rtol=1e-12)


def test_what_stands_beside_an_n_gram_row_is_contradicted() -> None:
    q = Multinomial().fitted(made([[0.6, 0.2, 0.1]], [0.7], p_src=0.8, hung=[(0, copy())]))
    scores = np.array([2 * odds(0.7) / 4, 2 / 3 / 4, 1 / 3 / 4, 4])
    np.testing.assert_allclose(q[1:], scores / (1 + scores.sum()), rtol=1e-12)


def test_a_weak_source_neither_helps_nor_harms() -> None:
    model, plain = Multinomial(), made([[0.6, 0.2, 0.1]], [0.7])
    agreed = made([[0.6, 0.2, 0.1]], [0.7], p_src=0.3, agreed={1: copy()})
    assert model.fitted(agreed).tolist() == model.fitted(plain).tolist()


def test_every_kind_of_row_has_its_place_among_the_buckets() -> None:
    both = made(
        [[0.6, 0.3], [0.6, 0.3], [0.6, 0.3]], [0.5] * 3, agreed={1: copy(40), 4: follower(2)}, hung=[(3, copy())]
    )
    slots = terms_of(both, CONFIG).slots.tolist()
    agreed_pick, beside_it, beside_agreed, agreed_sibling, pick, sibling, row = slots[1:]
    assert (row, agreed_pick, agreed_sibling) == (1, 40 + 2 * 3, 40 + 2 * 5 + 1)
    assert (beside_it, beside_agreed, pick, sibling) == (56 + 2 * 3 + 1, 56 + 2 * 5, 56 + 2 * 1, 56 + 2 * 1 + 1)
    assert terms_of(made([[0.6, 0.3]], [0.5]), CONFIG).slots[1:].tolist() == [NO_BUCKET] * 2
    deep = terms_of(made([], [], hung=[(0, follower(8)), (1, follower(8, 1)), (2, follower(8, 2))]), CONFIG)
    assert deep.slots[1:].tolist() == [7, 8 + 7, 16 + 7]


def test_features_by_hand() -> None:
    view = view_of(context=3 * 1024, temperature=0.7)
    one = made([[0.6, 0.2, 0.1], [0.5, 0.3, 0.2]], [0.7, 0.9], hung=[(0, copy())], view=view)
    features = terms_of(one, CONFIG).features
    share = log(odds(2 / 3))
    np.testing.assert_allclose(features[1, PICK], [1, log(odds(0.7)), share, 2, 0.7, 0])
    np.testing.assert_allclose(features[3, SIBLING], [1, log(1 / 3), log(odds(0.7)), share, 2, 0.7, 0])
    np.testing.assert_allclose(features[4, PICK], [1, log(odds(0.9)), 0, 2, 0.7, log2(2)], atol=1e-12)
    np.testing.assert_allclose(features[7, NGRAM], [2, 0.7])
    assert not features[1:4, NGRAM].any()
    assert not features[7, : NGRAM.start].any()
    assert not features[1, SIBLING].any()


def test_a_temperature_beyond_all_use_counts_as_two() -> None:
    one = made([[0.6, 0.2]], [0.7], hung=[(0, copy())], view=view_of(temperature=1e6))
    features = terms_of(one, CONFIG).features
    assert (features[1, PICK][4], features[2, SIBLING][5], features[3, NGRAM][1]) == (2, 2, 2)


def test_a_head_that_is_sure_or_broken_gives_prices_all_the_same() -> None:
    for head in (0.0, 1.0, float("nan")):
        for probs in ([1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [float("nan")] * 3):
            q = Multinomial().fitted(made([probs], [head]))
            assert np.isfinite(q).all(), (head, probs)
            assert q[1:].sum() < 1.0


@pytest.mark.parametrize("seed", range(20))
def test_a_family_sums_to_less_than_one_whatever_was_learned(seed: int) -> None:
    chance, model = np.random.default_rng(seed), Multinomial()
    model.terms.weights = chance.normal(0, 1.0, len(model.terms.weights))
    model.buckets.weights = chance.normal(0, 1.0, len(model.buckets.weights))
    for _ in range(20):
        one = drawn(chance, view_of(context=int(chance.integers(0, 9000)), temperature=float(chance.random())))
        q = model.fitted(one)
        assert np.all((q > 0) & (q <= 1))
        assert np.bincount(one.tree.parents[1:], q[1:]).max() < 1.0


def test_constants_out_of_range_are_refused() -> None:
    for wrong in ({"least": 0.5}, {"half_life": 0.0}, {"period": 0}, {"requests": 0}, {"context_unit": -1.0}):
        with pytest.raises(InvalidParameter):
            AcceptanceConfig(**wrong)
