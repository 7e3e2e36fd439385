"""The candidate tree: picks, siblings, n-gram chains, what merges, and prices that can be probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.candidates import NGRAM_BUCKETS, bucket_of, candidates, ngram_price
from firesteel.ngram import MAX_DEPTH, Kind, NgramIndex, Proposal
from firesteel.rounds import BlockDraft, Draft, RoundView
from firesteel.tree import Source

LINE = [10, 11, 12, 13, 14, 15, 16, 17]


def view_of(text: list[int], room: int = 100) -> RoundView:
    return RoundView("r", text[-1], len(text) - 1, 0.0, room, NgramIndex(text))


def block(tokens: list[list[int]], probs: list[float]) -> BlockDraft:
    return BlockDraft(0, np.array(tokens), np.tile(probs, (len(tokens), 1)))


@st.composite
def rounds(draw: st.DrawFn) -> tuple[RoundView, Draft | None]:
    """Texts of a small alphabet, so that chains meet picks and siblings; blocks of distinct candidates."""
    token = st.integers(0, 4)
    text = draw(st.lists(token, min_size=1, max_size=30)) + draw(st.lists(token, max_size=8)) * 2
    if draw(st.booleans()):
        return view_of(text, draw(st.integers(-1, 40))), None
    width = draw(st.integers(1, 5))
    tokens = draw(st.lists(st.permutations(range(5)), min_size=1, max_size=9))
    probs = np.sort(np.random.default_rng(draw(st.integers(0, 99))).dirichlet(np.ones(5), len(tokens)), axis=1)[:, ::-1]
    return view_of(text, draw(st.integers(-1, 40))), BlockDraft(0, np.array(tokens)[:, :width], probs[:, :width])


@given(rounds())
@settings(max_examples=150, deadline=None)
def test_every_candidate_tree_is_well_formed(round_: tuple[RoundView, Draft | None]) -> None:
    view, draft = round_
    grown = candidates(view, draft)
    tree = grown.tree
    assert tree.tokens[0] == view.anchor
    assert int(tree.depths.max()) <= max(0, view.room)
    edges = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    assert len(set(edges)) == len(edges), "a parent proposes a token once"
    assert np.all((tree.q >= 0) & (tree.q <= 1))
    if tree.width > 1:
        assert np.bincount(tree.parents[1:], weights=tree.q[1:]).max() <= 1 + 1e-9
    drafted = [row for row in range(tree.width) if tree.sources[row] in (Source.PICK, Source.SIBLING)]
    assert drafted == list(range(1, grown.probs.size + 1)), "the drafter's rows come first"
    assert len(grown.head) == len(grown.probs)
    line = grown.line.tolist()
    assert line[0] == 0
    assert tree.parents[line[1:]].tolist() == line[:-1]
    for row in range(1, tree.width):
        source, evidence = tree.sources[row], grown.evidence[row]
        assert grown.agreed[row] == (source != Source.NGRAM and evidence is not None)
        assert grown.bucket[row] == (-1 if evidence is None else bucket_of(evidence))
        others = [other for other in tree.children(int(tree.parents[row])).tolist() if grown.evidence[other]]
        contradicted = source != Source.NGRAM and evidence is None and others
        assert [grown.rival[row]] == (others if contradicted else [0])
        if source == Source.NGRAM:
            assert evidence is not None
            assert evidence.token == tree.tokens[row]
            assert tree.depths[row] <= MAX_DEPTH
        if source == Source.SIBLING and not grown.agreed[row]:
            assert len(tree.children(row)) == 0, "nothing is known below a sibling"


def test_without_a_draft_the_text_goes_on_to_32_below_the_anchor() -> None:
    grown = candidates(view_of(LINE * 6), None)
    assert grown.tree.tokens.tolist() == [17, *(LINE * 4)]
    assert grown.line.tolist() == list(range(33))
    assert set(grown.tree.sources[1:].tolist()) == {Source.NGRAM}


def test_a_pick_that_the_text_proposes_too_is_agreed_and_carries_its_own_chain() -> None:
    grown = candidates(view_of(LINE * 6), block([[10, 90], [11, 91]], [0.5, 0.2]))
    tree = grown.tree
    assert tree.tokens[1:5].tolist() == [10, 90, 11, 91]
    assert grown.agreed.tolist()[:5] == [False, True, False, True, False]
    assert tree.q[1] > 0.5, "two sources are worth no less than the better one"
    assert tree.tokens[grown.line].tolist() == [17, *(LINE * 4)], "the line runs past the end of the block"
    assert tree.sources[grown.line[1:]].tolist() == [Source.PICK] * 2 + [Source.NGRAM] * 30


def test_what_stands_beside_another_proposal_of_the_text_is_contradicted() -> None:
    """The pick by an n-gram row or by a sibling that agrees; the siblings of a pick that agrees by the pick."""
    grown = candidates(view_of(LINE * 6), block([[10, 90], [11, 91], [80, 12], [60, 61]], [0.5, 0.2]))
    tokens = grown.tree.tokens
    rivals = {int(tokens[row]): int(tokens[grown.rival[row]]) for row in np.flatnonzero(grown.rival)}
    assert rivals == {90: 10, 91: 11, 80: 12}, "the text knows nothing below 80, and nothing contradicts 60 or 61"
    grown = candidates(view_of(LINE * 6), block([[80, 81]], [0.5, 0.2]))
    assert grown.tree.tokens[grown.rival[1:3]].tolist() == [10, 10]
    assert not grown.rival[3:].any(), "the text does not contradict itself"
    assert not candidates(view_of(LINE * 6), None).rival.any()


def test_buckets_are_evidence_by_guesses_above() -> None:
    def copy(length: int, above: int = 0) -> int:
        return bucket_of(Proposal(0, Kind.COPY, length, 1, 1, above))

    def follower(times: int, above: int = 0) -> int:
        return bucket_of(Proposal(0, Kind.FOLLOWER, 3, times, 90, above))

    assert [copy(n) for n in (4, 7, 8, 15, 16, 31, 32, 63)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [follower(n) for n in (1, 2, 3, 4, 7, 8, 90)] == [4, 5, 5, 6, 6, 7, 7]
    assert [copy(4, above) // 8 for above in (0, 1, 2, 3, 4, 7, 8, 31)] == [0, 1, 2, 2, 3, 3, 4, 4]
    assert follower(90, 31) == NGRAM_BUCKETS - 1


def test_a_rounds_numbers_stay_when_the_text_goes_on() -> None:
    view = view_of(LINE * 6)
    draft = BlockDraft(0, np.array([[10, 90], [11, 91]]), np.array([[0.6, 0.1], [0.5, 0.2]]), np.array([0.9, 0.7]))
    grown = candidates(view, draft)
    before = view.ngram.p_src
    view.ngram.extend([10, 12, 11])
    assert grown.p_src == before != view.ngram.p_src
    assert grown.head.tolist() == [0.9, 0.7]
    assert grown.probs.tolist() == [[0.6, 0.1], [0.5, 0.2]]
    short = candidates(view_of(LINE * 6, room=1), draft)
    assert short.head.tolist() == [0.9]
    assert short.probs.tolist() == [[0.6, 0.1]]


def test_without_a_confidence_head_the_picks_probability_stands_in() -> None:
    assert block([[1, 2], [3, 4]], [0.6, 0.1]).head.tolist() == [0.6, 0.6]


def test_a_sibling_that_the_text_proposes_gets_children() -> None:
    grown = candidates(view_of(LINE * 6), block([[90, 10]], [0.6, 0.3]))
    sibling = 2
    assert grown.agreed[sibling]
    child = grown.tree.children(sibling)
    assert grown.tree.tokens[child].tolist() == [11]
    assert grown.tree.sources[child].tolist() == [Source.NGRAM]
    assert grown.tree.children(1).tolist() == [], "the text knows nothing below the wrong pick"


def test_a_copy_and_the_most_frequent_follower_stand_side_by_side() -> None:
    text = [1, 2, 3, 8, 9, 1, 2, 3, 8, 9, 5, 1, 2, 3, 7, 6, 4, 1, 2, 3, 8, 9, 4, 1, 2, 3]
    grown = candidates(view_of(text), None)
    # "4 1 2 3" was followed by 8, and 8 is the most frequent follower: one branch.
    assert grown.tree.tokens[grown.tree.children(0)].tolist() == [8]
    grown = candidates(view_of([*text[:-4], 6, 4, 1, 2, 3, 7, 6, 5, 1, 2, 3]), None)
    # "5 1 2 3" was followed by 7; 8 is more frequent after "1 2 3".
    assert grown.tree.tokens[grown.tree.children(0)].tolist() == [7, 8]
    assert grown.tree.ranks[grown.tree.children(0)].tolist() == [0, 1]


def test_the_prior_rises_with_the_match_and_with_the_count() -> None:
    copies = [ngram_price(0.6, Proposal(0, Kind.COPY, length, 1, 1, 0)) for length in range(4, 64)]
    assert copies[0] == pytest.approx(0.6)
    assert copies == sorted(copies)
    assert copies[-1] < 1
    followers = [ngram_price(0.6, Proposal(0, Kind.FOLLOWER, 3, times, 9, 0)) for times in range(1, 10)]
    assert followers == sorted(followers)
    assert followers[-1] == pytest.approx(0.6 * 0.9)
