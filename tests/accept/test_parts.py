"""Labels, the head-based estimate, the guard, exploration, and the raw baseline."""

from __future__ import annotations

import numpy as np
import pytest

from firesteel.accept.base import labels_of
from firesteel.accept.explore import Explorer
from firesteel.accept.guard import Guard
from firesteel.accept.head import head_based
from firesteel.accept.multinomial import Multinomial
from firesteel.accept.raw import Raw
from firesteel.candidates import Candidates
from tests.accept.synthetic import NOTHING, copy, follower, made

PICKS = [[0.6, 0.3], [0.6, 0.3]]


def test_every_child_of_an_accepted_parent_is_labelled_placed_or_not() -> None:
    """The tree held rows 0, 1 and 3; row 4 was the target's choice below row 1 and nobody had placed it."""
    one = made(PICKS, [0.5, 0.5], hung=[(1, copy()), (5, copy(9, 1))])
    labels = labels_of(one, np.array([0, 1]), np.array([1, 4]))
    assert labels.rows.tolist() == [1, 2, 3, 4, 5]
    assert labels.families.tolist() == [0, 0, 1, 1, 1]
    assert labels.right.tolist() == [True, False, False, True, False]
    assert labels.count == 2
    model = Multinomial()
    model.learn(one, np.array([0, 1]), np.array([1, 4]))
    assert model.terms.updates[0] == 2, "a labelled parent is an update"


def test_a_kept_row_without_candidates_teaches_nothing() -> None:
    labels = labels_of(made(PICKS, [0.5, 0.5]), np.array([0, 1, 3]), np.array([1, 3, NOTHING]))
    assert labels.count == 2
    assert labels.rows.tolist() == [1, 2, 3, 4]
    assert labels_of(made([], []), np.array([0]), np.array([NOTHING])).count == 0
    Multinomial().learn(made([], []), np.array([0]), np.array([NOTHING]))


def test_the_head_based_estimate_is_each_sources_own_number() -> None:
    one = made([[0.6, 0.2, 0.1]], [0.7], p_src=0.8, agreed={2: copy()}, hung=[(2, copy(9, 1))])
    np.testing.assert_allclose(head_based(one, 0.0, 1e-4), [1, 0.7, 2 / 9, 1 / 9, 0.8])
    shifted = head_based(one, np.log(2.0), 1e-4)
    np.testing.assert_allclose(shifted[1:] / (1 - shifted[1:]), np.array([7 / 3, 2 / 7, 1 / 8, 4]) * 2)
    assert shifted[0] == 1.0


def test_head_based_prices_of_a_family_are_scaled_to_one_at_most() -> None:
    one = made([[0.6, 0.2, 0.1]], [0.9], p_src=0.8, hung=[(0, copy())])
    q = Multinomial().by_head(one)
    assert q[1:].sum() == pytest.approx(1.0)
    assert q[1] / q[4] == pytest.approx(0.9 / 0.8)


def test_the_guard_starts_with_the_head_and_turns_with_the_losses() -> None:
    guard = Guard(half_life=4.0)
    assert not guard.trusts_fit
    sharp, vague, right = np.array([0.9, 0.05]), np.array([0.6, 0.3]), np.array([True, False])
    guard.score(sharp, vague, right, 1)
    assert guard.trusts_fit
    assert guard.fitted == pytest.approx(-np.log(0.9 * 0.95))
    guard.score(vague, sharp, right, 4)  # the same again the other way round, and the old counts half
    assert not guard.trusts_fit
    assert guard.fitted == pytest.approx(-np.log(0.9 * 0.95) / 2 - np.log(0.6 * 0.7))
    for _ in range(3):
        guard.score(sharp, vague, right, 1)
    assert guard.trusts_fit


def test_being_sure_and_wrong_costs_a_finite_loss() -> None:
    guard = Guard(half_life=4.0)
    guard.score(np.array([0.0, 1.0]), np.array([0.5, 0.5]), np.array([True, False]), 1)
    assert np.isfinite(guard.fitted)
    assert not guard.trusts_fit


def chains() -> Candidates:
    """A pick and a sibling; from the anchor a follower, row 3, and 4 below it; from the pick a copy, 5, and 6 below."""
    hung = [(0, follower(1)), (3, follower(1, 1)), (1, copy(40)), (5, copy(41, 1))]
    return made([[0.6, 0.3]], [0.5], hung=hung)


ORDER = np.array([0, 1, 2, 5, 3, 6, 4])  # best first


def test_every_16th_round_the_last_row_goes_to_the_least_labelled_bucket() -> None:
    one, explorer = chains(), Explorer(period=16)
    explorer.labels[:] = 5
    explorer.labels[one.bucket[3]] = 1
    for _ in range(3):
        for _ in range(15):
            assert explorer.choose(one, ORDER, 3).tolist() == [0, 1, 2]
        assert explorer.choose(one, ORDER, 3).tolist() == [0, 1, 3]
    explorer.labels[one.bucket[5]] = 0
    for _ in range(15):
        explorer.choose(one, ORDER, 3)
    assert explorer.choose(one, ORDER, 3).tolist() == [0, 1, 5]


def test_exploration_keeps_a_tree_and_prefers_the_likelier_of_equals() -> None:
    """Row 6 has the least-labelled bucket, but hangs below what is not placed; 5 and 3 are alike, 5 comes first."""
    one, explorer = chains(), Explorer(period=1)
    explorer.labels[:] = 5
    explorer.labels[one.bucket[6]] = 0
    assert explorer.choose(one, ORDER, 3).tolist() == [0, 1, 5]
    assert explorer.choose(one, ORDER, 5).tolist() == [0, 1, 2, 5, 6]
    explorer.labels[-1] = 0  # what a row without a bucket would find
    assert explorer.choose(one, ORDER, 2).tolist() == [0, 3], "a sibling is not explored"
    # Row 5 is the last row: what hangs below it would lose its parent.
    assert explorer.choose(one, ORDER, 4).tolist() == [0, 1, 2, 3]


def test_exploration_leaves_rounds_alone_that_have_nothing_to_explore() -> None:
    explorer = Explorer(period=2)
    assert explorer.choose(chains(), ORDER, 3).tolist() == [0, 1, 2]
    for _ in range(3):  # none of these is a tree round with n-gram candidates
        assert explorer.choose(made([[0.6, 0.3]], [0.5]), np.arange(3), 2).tolist() == [0, 1]
        assert explorer.choose(chains(), ORDER, 1).tolist() == [0]
    assert explorer.choose(chains(), ORDER, 3).tolist() == [0, 1, 5]
    assert explorer.choose(chains(), ORDER, 3).tolist() == [0, 1, 2]
    assert explorer.choose(chains(), ORDER, 7).tolist() == ORDER.tolist()


def test_labels_are_counted_by_the_bucket_of_n_gram_rows_alone() -> None:
    model = Multinomial()
    one = made([[0.6, 0.3]], [0.5], agreed={1: copy(40)}, hung=[(1, follower(1)), (3, follower(1, 1))])
    model.learn(one, np.array([0, 1]), np.array([1, NOTHING]))
    assert np.flatnonzero(model.explorer.labels).tolist() == [4]
    assert model.explorer.labels[4] == 1


def test_raw_prices_are_the_candidates_own() -> None:
    one, raw = chains(), Raw()
    raw.learn(one, np.array([0]), np.array([NOTHING]))
    raw.forget("r")
    raw.load(raw.state())
    assert raw.price(one) is one.tree.q
