"""The laws of `match` and `reject`, by exact enumeration over a toy target and a toy drafter.

A case grows a tree (drawing from the drafter where it should), verifies it by the real rule, and keeps the first two
tokens; where a round commits only one, the second comes from a plain round, as it does in the engine. The law of the
pair must be p(a) p(b | a) to 1e-12. Every such test has a poisoned twin: the same code with one known fault, whose law
must be visibly wrong. A twin that passed would mean that the test cannot see that fault.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from firesteel.tree import Proposal, TokenTree
from firesteel.verify.rules import match, reject, without
from tests.verify.chance import distance, law
from tests.verify.growth import ANCHOR, Growth, P, Q, V

EXACT = 1e-12
VISIBLE = 1e-2


def first_two(dice, growth, outcome) -> tuple[int, int]:
    """The first two tokens of the text; a plain round supplies what this one did not commit."""
    tokens = [growth.tokens[row] for row in outcome.path[1:]] + [outcome.token]
    if len(tokens) < 2:
        tokens.append(match(TokenTree.root(ANCHOR), lambda row: P((tokens[0],)), dice).token)
    return tokens[0], tokens[1]


def by_reject(grow, q_of=Q):
    """The law of the first two tokens when `grow(growth)` makes the tree and `reject` verifies it."""

    def run(dice):
        growth = Growth(dice)
        grow(growth)
        rule_p, rule_q = (lambda row: P(growth.text(row))), (lambda row: q_of(growth.text(row)))
        return first_two(dice, growth, reject(growth.tree(), rule_p, rule_q, dice))

    return law(run)


def by_match(growth, dice_of=lambda dice: dice):
    def run(dice):
        return first_two(dice, growth, match(growth.tree(), lambda row: P(growth.text(row)), dice_of(dice)))

    return law(run)


WANTED = {(a, b): P(())[a] * P((a,))[b] for a, b in product(range(V), repeat=2)}
FIRST = {a: P(())[a] for a in range(V)}


def first_token(pairs):
    total = dict.fromkeys(range(V), 0.0)
    for (a, _), weight in pairs.items():
        total[a] += weight
    return total


# --- shapes for `reject`: each admits a slot before its token is seen ------------------------------------------------


def chain(growth):
    row = 0
    for _ in range(3):
        row = growth.drawn(row)


def siblings(growth):
    for _ in range(3):
        growth.drawn(0)


def all_siblings(growth):
    for _ in range(V):
        growth.drawn(0)


def two_levels(growth):
    first, second = growth.drawn(0), growth.drawn(0)
    growth.drawn(first)
    growth.drawn(second)


def three_levels(growth):
    first = growth.drawn(0)
    deep = growth.drawn(first)
    growth.drawn(first)
    growth.drawn(deep)


def late_sibling(growth):
    """A best-first tree's order: a child first, then a second sibling of its parent with a child of its own."""
    growth.drawn(growth.drawn(0))
    growth.drawn(growth.drawn(0))


def adaptive(growth):
    """The shape follows the values already drawn, which the theorem allows: they choose what to draw next."""
    first = growth.drawn(0)
    if growth.tokens[first] >= 2:
        growth.drawn(growth.drawn(0))
    else:
        growth.drawn(growth.drawn(first))
        growth.drawn(first)


SHAPES = [lambda growth: None, chain, siblings, all_siblings, two_levels, three_levels, late_sibling, adaptive]


@pytest.mark.parametrize("grow", SHAPES, ids=["root", *(s.__name__ for s in SHAPES[1:])])
def test_reject_pays_p_for_the_first_token_and_the_first_two(grow):
    """TreeSpark §3.3: any shape, any number of siblings, shapes that follow the values drawn so far."""
    pairs = by_reject(grow)
    assert sum(pairs.values()) == pytest.approx(1, abs=EXACT)
    assert distance(first_token(pairs), FIRST) < EXACT
    assert distance(pairs, WANTED) < EXACT


def test_reject_is_exact_when_the_drafter_is_the_target():
    """p = q leaves no residual at all: every first child is kept, nothing is divided by zero."""

    def run(dice):
        x = dice.token(P(()))
        tree = TokenTree.chain(ANCHOR, [x])
        tree = TokenTree(tree.tokens, tree.parents, tree.sources, tree.ranks, tree.q, Proposal.DRAWN)
        outcome = reject(tree, lambda row: P((x,)[:row]), lambda row: P(()), dice)
        assert len(outcome.path) == 2
        return x

    assert distance(law(run), FIRST) < EXACT


def test_reject_is_exact_where_q_misses_part_of_p():
    """A filtered drafter (top-k 2) draws from half of the vocabulary: the rest is owed by the residual."""

    def narrow(text):
        q = Q(text).copy()
        q[np.argsort(q)[:2]] = 0
        return q / q.sum()

    def run(dice):
        growth, q = Growth(dice), narrow(())
        for _ in range(2):
            token = dice.token(q)
            growth.placed(0, token)
            q = without(q, token)
        outcome = reject(growth.tree(), lambda row: P(growth.text(row)), lambda row: narrow(growth.text(row)), dice)
        return first_two(dice, growth, outcome)

    assert distance(law(run), WANTED) < EXACT


# --- poisoned twins of `reject` --------------------------------------------------------------------------------------


def top_k_as_draws(growth):
    """Miao et al.'s walk over the K most likely tokens, which nobody drew (TreeSpark Table 9)."""
    for token in np.argsort(-Q(()))[:2]:
        growth.placed(0, int(token))


def dropped_by_value(growth):
    """Drawn, looked at, and not kept: the unlikely draw is thrown away."""
    token = growth.dice.token(Q(()))
    if Q(())[token] >= np.sort(Q(()))[-2]:
        growth.placed(0, token)


def reordered_by_value(growth):
    """Two honest draws, then sorted by probability before they are verified."""
    growth.drawn(0)
    growth.drawn(0)
    growth.tokens[1:] = sorted(growth.tokens[1:], key=lambda token: -Q(())[token])


def drawn_at_half_the_temperature(growth):
    """Sampled at T = 0.5 but recorded at T = 1."""
    growth.drawn(0, temperature=0.5)


@pytest.mark.parametrize(
    "grow",
    [top_k_as_draws, dropped_by_value, reordered_by_value, drawn_at_half_the_temperature],
    ids=lambda g: g.__name__,
)
def test_poisoned_reject_shows(grow):
    pairs = by_reject(grow)
    assert sum(pairs.values()) == pytest.approx(1, abs=EXACT)
    assert distance(first_token(pairs), FIRST) > VISIBLE
    assert distance(pairs, WANTED) > VISIBLE


class Credulous:
    """Dice of a broken engine: whatever was drafted first is committed unchecked."""

    def __init__(self, dice, draft: int) -> None:
        self.dice, self.draft = dice, draft

    def token(self, p, depth):
        return self.draft if depth == 0 else self.dice.token(p, depth)

    def accepts(self, probability, depth, sibling):
        return (depth == 0 and sibling == 0) or self.dice.accepts(probability, depth, sibling)


def test_poisoned_reject_that_keeps_the_first_draft_unchecked_shows():
    def run(dice):
        growth = Growth(dice)
        chain(growth)
        outcome = reject(
            growth.tree(), lambda row: P(growth.text(row)), lambda row: Q(growth.text(row)), Credulous(dice, 0)
        )
        return first_two(dice, growth, outcome)

    pairs = law(run)
    assert distance(first_token(pairs), {a: Q(())[a] for a in range(V)}) < EXACT  # the drafter's law, not the target's
    assert distance(pairs, WANTED) > VISIBLE


# --- match -----------------------------------------------------------------------------------------------------------


def fixed(*paths: tuple[int, ...]) -> Growth:
    """A looked-up tree that holds the given texts."""
    growth, rows = Growth(proposal=Proposal.FIXED), {(): 0}
    for path in paths:
        for depth in range(len(path)):
            if path[: depth + 1] not in rows:
                rows[path[: depth + 1]] = growth.placed(rows[path[:depth]], path[depth])
    return growth


TREES = [
    fixed(),
    fixed((1, 2, 3)),
    fixed(*[(a,) for a in range(V)]),
    fixed((2, 1), (2, 3), (0, 0), (3,)),
    fixed(*product(range(V), repeat=2)),
    fixed((1, 1, 1), (1, 2, 0), (0, 3, 3), (0, 3, 1)),
]


@pytest.mark.parametrize("growth", TREES, ids=lambda g: f"{len(g.tokens)}rows")
def test_match_pays_p_for_any_tree(growth):
    """Top-K siblings and n-gram chains are not draws, and need not be."""
    pairs = by_match(growth)
    assert distance(first_token(pairs), FIRST) < EXACT
    assert distance(pairs, WANTED) < EXACT


def test_poisoned_match_that_keeps_the_first_draft_unchecked_shows():
    growth = fixed((2, 1), (0,))
    pairs = by_match(growth, lambda dice: Credulous(dice, 2))
    assert first_token(pairs)[2] == pytest.approx(1)
    assert distance(pairs, WANTED) > VISIBLE


def test_poisoned_match_that_draws_once_per_child_shows():
    """A fresh draw for every sibling gives each a second chance: the text drifts towards the drafted tokens."""
    children = (0, 3)

    def run(dice):
        for child in children:
            if dice.token(P(()), 0) == child:
                return child
        return dice.token(P(()), 0)

    assert distance(law(run), FIRST) > VISIBLE
