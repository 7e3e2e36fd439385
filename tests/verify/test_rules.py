"""The walk of each rule: which rows are kept, which are read, and what the draws are keyed by."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import LosslessViolation
from firesteel.sampling import TOKEN_DRAW, draw, key_of, uniform
from firesteel.tree import Proposal, TokenTree
from firesteel.verify.rules import KeyedDice, greedy, match, reject, residual, without

V = 5


def make(tokens, parents, proposal=Proposal.FIXED) -> TokenTree:
    n = len(tokens)
    zeros = np.zeros(n, np.int64)
    return TokenTree(np.array(tokens), np.array(parents), zeros, zeros, np.ones(n), proposal)


@st.composite
def trees(draw_from, vocab: int = V, most: int = 12) -> TokenTree:
    """Any tree in which siblings are distinct."""
    tokens, parents = [draw_from(st.integers(0, vocab - 1))], [-1]
    for row in range(1, draw_from(st.integers(1, most))):
        parent = draw_from(st.integers(0, row - 1))
        taken = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        free = sorted(set(range(vocab)) - taken)
        if not free:
            break
        tokens.append(draw_from(st.sampled_from(free)))
        parents.append(parent)
    return make(tokens, parents)


@settings(max_examples=60, deadline=None)
@given(tree=trees(), data=st.data())
def test_greedy_keeps_the_longest_agreeing_root_path(tree, data):
    wanted = np.array(data.draw(st.lists(st.integers(0, V - 1), min_size=tree.width, max_size=tree.width)))
    outcome = greedy(tree, wanted.item)
    paths = [tree.path(row) for row in range(tree.width)]
    agreeing = [path for path in paths if all(tree.tokens[b] == wanted[a] for a, b in pairwise(path))]
    assert outcome.path.tolist() == max(agreeing, key=len)
    assert outcome.wanted.tolist() == wanted[outcome.path].tolist()
    assert outcome.token == wanted[outcome.path[-1]]


def test_rows_off_the_path_are_never_read():
    """Each kept row is read once, in order; a row whose parent fell is not."""
    tree = make([9, 1, 2, 3, 4], [-1, 0, 0, 2, 1])
    read = []

    def wanted(row):
        read.append(row)
        return {0: 2, 2: 3, 3: 0}[row]

    assert greedy(tree, wanted).path.tolist() == read == [0, 2, 3]


def test_a_correction_comes_from_the_row_that_rejected():
    """Not from the row of the rejected draft, and not a round late."""
    tree = TokenTree.chain(0, [1, 2, 3])
    outcome = greedy(tree, np.array([1, 4, 3, 0]).item)
    assert (outcome.path.tolist(), outcome.token, outcome.wanted.tolist()) == ([0, 1], 4, [1, 4])


@settings(max_examples=60, deadline=None)
@given(tree=trees(), seed=st.integers(0, 2**64 - 1), start=st.integers(0, 50))
def test_match_gives_the_plain_text_of_its_seed_at_any_tree(tree, seed, start):
    def p(text):
        return np.random.default_rng([7, *text]).dirichlet(np.ones(V))

    def text(row):
        return tuple(tree.tokens[tree.path(row)[1:]].tolist())

    outcome = match(tree, lambda row: p(text(row)), KeyedDice(seed, start))
    committed = [*text(int(outcome.path[-1])), outcome.token]
    plain = []
    for position in range(start, start + len(committed)):
        plain.append(draw(p(tuple(plain)), key_of(seed, position)))
    assert committed == plain == outcome.wanted.tolist()


def test_reject_on_a_fixed_tree_is_refused():
    with pytest.raises(LosslessViolation, match="match"):
        reject(TokenTree.chain(0, [1]), lambda row: np.ones(V) / V, lambda row: np.ones(V) / V, KeyedDice(0, 0))


@pytest.mark.parametrize("tokens", [[0, 4], [0, 1, 1]], ids=["outside q", "a sibling twice"])
def test_reject_refuses_a_child_that_q_cannot_have_drawn(tokens):
    q = np.array([0.0, 0.5, 0.5, 0.0, 0.0])
    p = np.array([0.5, 0.0, 0.5, 0.0, 0.0])
    tree = make(tokens, [-1] + [0] * (len(tokens) - 1), Proposal.DRAWN)
    with pytest.raises(LosslessViolation, match="cannot have drawn"):
        reject(tree, lambda row: p, lambda row: q, KeyedDice(0, 0))


def test_reject_without_drafts_is_plain_decoding():
    p = np.random.default_rng(0).dirichlet(np.ones(V))
    tree = make([0], [-1], Proposal.DRAWN)
    for position in range(20):
        dice = KeyedDice(3, position)
        assert reject(tree, lambda row: p, lambda row: p, dice).token == match(tree, lambda row: p, dice).token


def test_every_chance_of_a_round_has_a_number_of_its_own():
    """Acceptance tests and tokens, per position and sibling; a shared number would tie one to the other."""
    dice, asked = KeyedDice(11, 4), set()
    for depth in range(4):
        asked.add(uniform(11, 4 + depth, TOKEN_DRAW))
        for sibling in range(4):
            u = uniform(11, 4 + depth, 1 + sibling)
            assert dice.accepts(np.nextafter(u, 1), depth, sibling)
            assert not dice.accepts(u, depth, sibling)
            asked.add(u)
    assert len(asked) == 20


def test_siblings_and_depths_face_tests_of_their_own():
    """A sibling that met the number its elder failed on would be rejected too often."""
    asked = []

    class Picky:
        """Rejects the first two children, keeps the third, rejects all below it."""

        def accepts(self, probability, depth, sibling):
            asked.append((depth, sibling))
            return depth == 0 and sibling == 2

        def token(self, p, depth):
            asked.append((depth, "token"))
            return int(np.argmax(p))

    tree = make([0, 1, 2, 3, 0, 1], [-1, 0, 0, 0, 3, 3], Proposal.DRAWN)
    p = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    outcome = reject(tree, lambda row: p, lambda row: np.ones(V) / V, Picky())
    assert asked == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, "token")]
    assert (outcome.path.tolist(), outcome.wanted.tolist()) == ([0, 3], [3, 4])


def test_residual_and_siblings():
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.4, 0.1, 0.3])
    np.testing.assert_allclose(residual(p, q), [0.75, 0, 0.25, 0])
    np.testing.assert_allclose(without(q, 1), [1 / 3, 0, 1 / 6, 1 / 2])
    np.testing.assert_array_equal(q, [0.2, 0.4, 0.1, 0.3])
    np.testing.assert_array_equal(residual(p, p), p)
    np.testing.assert_array_equal(without(np.array([0.0, 1.0]), 1), [0, 0])
