"""Token trees: the invariants of the arrays, and AdaSpark's Proposition 1 against every tree there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import LosslessViolation
from firesteel.tree import Proposal, Source, TokenTree


@st.composite
def trees(draw: st.DrawFn, candidates: int = 12) -> TokenTree:
    """Trees of up to `candidates` rows under the anchor; prices are drawn from few values, so that ties are common."""
    n = draw(st.integers(0, candidates))
    parents = [draw(st.integers(0, row)) for row in range(n)]
    q = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), min_size=n, max_size=n))
    sources = [Source.ANCHOR, *draw(st.lists(st.sampled_from(list(Source)[1:]), min_size=n, max_size=n))]
    return TokenTree(
        tokens=np.array(draw(st.lists(st.integers(0, 9), min_size=n + 1, max_size=n + 1))),
        parents=np.array([-1, *parents]),
        sources=np.array(sources, np.int64),
        ranks=np.zeros(n + 1, np.int64),
        q=np.array([1.0, *q]),
    )


def is_tree(tree: TokenTree, rows: set[int]) -> bool:
    """Closed under taking parents."""
    return all(int(tree.parents[row]) in rows for row in rows if row != 0)


@given(trees())
@settings(max_examples=60, deadline=None)
def test_depth_survival_mask_and_children_agree_with_the_path(tree: TokenTree) -> None:
    for row in range(tree.width):
        path = tree.path(row)
        assert path[0] == 0
        assert path[-1] == row
        assert tree.depths[row] == len(path) - 1
        assert tree.survival[row] == pytest.approx(np.prod(tree.q[path]))
        assert np.flatnonzero(tree.ancestor_mask[row]).tolist() == path
        assert all(tree.parents[child] == row for child in tree.children(row))
    assert sum(len(tree.children(row)) for row in range(tree.width)) == tree.width - 1


@given(trees(candidates=8))
@settings(max_examples=80, deadline=None)
def test_proposition_1_every_prefix_is_a_tree_and_none_of_its_size_is_worth_more(tree: TokenTree) -> None:
    order = tree.best_first().tolist()
    assert order[0] == 0
    for width in range(1, tree.width + 1):
        prefix = order[:width]
        assert is_tree(tree, set(prefix))
        best = max(
            tree.survival[[0, *rows]].sum()
            for rows in combinations(range(1, tree.width), width - 1)
            if is_tree(tree, {0, *rows})
        )
        assert tree.survival[prefix].sum() == pytest.approx(best)
        assert tree.prefix(width).survival.sum() == pytest.approx(best)
        assert tree.prefix(width).width == width


@given(trees(), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_clamp_keeps_exactly_the_rows_that_are_not_too_deep(tree: TokenTree, depth: int) -> None:
    clamped = tree.clamp(depth)
    kept = np.flatnonzero(tree.depths <= depth)
    assert clamped.tokens.tolist() == tree.tokens[kept].tolist()
    assert clamped.depths.tolist() == tree.depths[kept].tolist()
    assert np.allclose(clamped.survival, tree.survival[kept])


@given(trees(), st.data())
@settings(max_examples=60, deadline=None)
def test_take_keeps_every_taken_row_under_its_own_path(tree: TokenTree, data: st.DataObject) -> None:
    """Also with siblings reordered: rows may come in any order with parents first."""
    rows = [0]
    while (nexts := [row for row in range(1, tree.width) if row not in rows and tree.parents[row] in rows]) and (
        data.draw(st.booleans())
    ):
        rows.append(data.draw(st.sampled_from(nexts)))
    taken = tree.take(rows)
    for new, old in enumerate(rows):
        assert tree.tokens[tree.path(old)].tolist() == taken.tokens[taken.path(new)].tolist()


def test_a_chain_is_a_tree_and_no_speculation_is_its_shortest() -> None:
    chain = TokenTree.chain(7, [1, 2, 3], Source.NGRAM, q=0.5)
    assert chain.parents.tolist() == [-1, 0, 1, 2]
    assert chain.sources.tolist() == [Source.ANCHOR, Source.NGRAM, Source.NGRAM, Source.NGRAM]
    assert chain.survival.tolist() == [1.0, 0.5, 0.25, 0.125]
    assert TokenTree.root(7).width == 1


@pytest.mark.parametrize("parents", [[0, 0], [-1, 1], [-1, 2, 0], [-1, -1]])
def test_arrays_that_are_no_tree_are_refused(parents: list[int]) -> None:
    n = len(parents)
    zeros = np.zeros(n, np.int64)
    with pytest.raises(AssertionError):
        TokenTree(zeros, np.array(parents), zeros, zeros, np.ones(n))


def test_a_drawn_tree_cannot_be_resized() -> None:
    drawn = replace(TokenTree.chain(7, [1, 2, 3]), proposal=Proposal.DRAWN)
    for resize in (lambda: drawn.prefix(2), lambda: drawn.take([0, 1]), lambda: drawn.clamp(1)):
        with pytest.raises(LosslessViolation):
            resize()
    assert drawn.clamp(3) is drawn  # nothing dropped, nothing biased
