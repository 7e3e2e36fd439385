"""The suffix index against a reference that scans the whole text for every question."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.ngram import FOLLOWER_LEN, MAX_COPY, MAX_DEPTH, MIN_COPY, Kind, NgramIndex, Proposal


def longest_copy(text: list[int], context: list[int]) -> tuple[int, int]:
    """`(length, end)` of the longest suffix of `context` that ends in `text` before its last token, latest first."""
    best = (0, -1)
    for end in range(len(text) - 2, -1, -1):
        length = 0
        while length < min(MAX_COPY, end + 1, len(context)) and text[end - length] == context[-1 - length]:
            length += 1
        best = max(best, (length, end), key=lambda pair: pair[0])
    return best


def reference_chain(text: list[int], tail: list[int], limit: int) -> list[Proposal]:
    """The definition in the module's docstring, read literally."""
    chain: list[Proposal] = []
    limit = min(limit, MAX_DEPTH - len(tail))
    while len(chain) < limit:
        context = text + tail + [proposal.token for proposal in chain]
        if len(context) < FOLLOWER_LEN:
            break
        length, end = longest_copy(text, context)
        if length >= MIN_COPY:
            while len(chain) < limit:  # read on, also through what the chain itself has written
                written = text + tail + [proposal.token for proposal in chain]
                end += 1
                chain.append(Proposal(written[end], Kind.COPY, length, 1, 1, len(chain)))
                length += 1
            break
        followers = [
            text[i + FOLLOWER_LEN]
            for i in range(len(text) - FOLLOWER_LEN)
            if text[i : i + FOLLOWER_LEN] == context[-FOLLOWER_LEN:]
        ]
        if not followers:
            break
        counts = Counter(followers)
        token = max(counts, key=lambda t: (counts[t], len(followers) - followers[::-1].index(t)))
        chain.append(Proposal(token, Kind.FOLLOWER, FOLLOWER_LEN, counts[token], len(followers), len(chain)))
    return chain


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Small alphabets, and pieces repeated with noise, so that long and competing matches are common."""
    alphabet = draw(st.integers(1, 6))
    token = st.integers(0, alphabet - 1)
    piece = draw(st.lists(token, min_size=1, max_size=40))
    repeats = draw(st.integers(0, 4))
    return draw(st.lists(token, max_size=60)) + piece * repeats + draw(st.lists(token, max_size=20))


@given(texts(), st.lists(st.integers(0, 5), max_size=8), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_chain_equals_a_scan_of_the_text(text: list[int], tail: list[int], limit: int) -> None:
    assert NgramIndex(text).chain(tail, limit) == reference_chain(text, tail, limit)


@given(texts(), st.lists(st.integers(1, 9), max_size=12))
@settings(max_examples=80, deadline=None)
def test_extending_in_pieces_gives_the_index_of_the_whole(text: list[int], cuts: list[int]) -> None:
    """Also pins that questions between the pieces, hypothetical ones included, leave no trace."""
    index, start = NgramIndex(), 0
    for cut in [*cuts, len(text)]:
        index.extend(text[start : start + cut])
        start = min(len(text), start + cut)
        index.chain([0, 1, 0, 1, 9])
    whole = NgramIndex(text)
    assert len(index) == len(text)
    assert index.p_src == whole.p_src
    assert index.chain() == whole.chain()


@given(texts())
@settings(max_examples=60, deadline=None)
def test_precision_is_what_would_have_been_proposed_against_what_came(text: list[int]) -> None:
    asked = right = 0
    for i in range(len(text)):
        guess = reference_chain(text[:i], [], 1)
        asked += bool(guess)
        right += bool(guess) and guess[0].token == text[i]
    assert NgramIndex(text).p_src == (right + 1) / (asked + 2)


def test_the_longest_copy_wins_over_the_latest() -> None:
    text = [1, 2, 3, 4, 5, 77, 0, 2, 3, 4, 5, 88, 1, 2, 3, 4, 5]
    assert NgramIndex(text).chain()[0] == Proposal(77, Kind.COPY, 5, 1, 1, 0)


def test_the_latest_of_equal_copies_wins() -> None:
    text = [1, 2, 3, 4, 77, 1, 2, 3, 4, 88, 1, 2, 3, 4]
    assert [proposal.token for proposal in NgramIndex(text).chain(max_len=3)] == [88, 1, 2]


def test_a_repeated_line_goes_on_repeating_to_the_depth_limit() -> None:
    line = [10, 11, 12, 13, 14, 15, 16]
    chain = NgramIndex(line * 6).chain()
    assert [proposal.token for proposal in chain] == (line * 5)[:MAX_DEPTH]
    assert [proposal.above for proposal in chain] == list(range(MAX_DEPTH))


def test_followers_vote_where_no_copy_is_long_enough() -> None:
    text = [1, 2, 3, 8, 0, 1, 2, 3, 9, 5, 1, 2, 3, 9, 6, 1, 2, 3, 8, 7, 1, 2, 3, 9, 4, 1, 2, 3]
    assert NgramIndex(text).chain(max_len=1) == [Proposal(9, Kind.FOLLOWER, 3, 3, 5, 0)]
    assert NgramIndex(text).follower() == Proposal(9, Kind.FOLLOWER, 3, 3, 5, 0)


def test_chains_hang_from_the_anchor_and_from_every_pick_no_deeper_than_asked() -> None:
    index = NgramIndex(list(range(12)) * 4)
    chains = index.chains([0, 1, 50], max_len=6)
    assert [len(chain) for chain in chains] == [6, 5, 4, 0]
    assert [len(chain) for chain in index.chains([0, 1])] == [32, 31, 30]


def test_short_texts_propose_nothing() -> None:
    for text in ([], [1], [1, 2], [1, 2, 3], [1, 1, 1]):
        assert NgramIndex(text).chain() == []
    assert NgramIndex([1, 1, 1, 1]).chain(max_len=2) == [
        Proposal(1, Kind.FOLLOWER, 3, 1, 1, 0),
        Proposal(1, Kind.FOLLOWER, 3, 1, 1, 1),
    ]


def test_numpy_tokens_are_taken_as_ints() -> None:
    index = NgramIndex(np.array([1, 2, 3, 4, 5] * 3))
    assert index.chain(np.array([1, 2]), 2) == NgramIndex([1, 2, 3, 4, 5] * 3).chain([1, 2], 2)
    assert type(index.chain(max_len=1)[0].token) is int


@pytest.mark.parametrize("alphabet", [1, 2, 40_000])
def test_long_texts_cost_no_more_per_token(alphabet: int) -> None:
    """Pins linear time: a scan would need minutes here. The bounds are ten times what an idle core needs."""
    text = np.random.default_rng(0).integers(0, alphabet, 8192).tolist()
    start = time.thread_time()
    index = NgramIndex(text)
    assert time.thread_time() - start < 2.0
    start = time.thread_time()
    for _ in range(20):
        index.chain()
    assert (time.thread_time() - start) / 20 < 3e-3
