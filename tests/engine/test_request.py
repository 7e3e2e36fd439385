"""Stops, limits and usage: text, ids and statistics end at the same place, in the middle of a block too."""

from __future__ import annotations

import numpy as np

from firesteel.engine.request import Request, Status
from firesteel.rounds import VerifyOutcome
from firesteel.tree import TokenTree
from tests.toys import request


def block(one: Request, tokens: list[int]) -> list[int]:
    """A round in which a chain is accepted whole: all but the last token were drafted."""
    tree = TokenTree.chain(one.anchor, tokens[:-1])
    outcome = VerifyOutcome(np.arange(len(tokens)), tokens[-1], np.array(tokens))
    return one.commit(tree, outcome, None)


def test_a_stop_token_inside_a_block_ends_everything_there() -> None:
    one = request([1], stop_ids=[9])
    assert block(one, [4, 9, 5, 6]) == [4, 9]
    assert one.output == [4, 9]
    assert (one.status, one.finish_reason) == (Status.FINISHED, "stop")


def test_the_stop_is_checked_before_the_limit() -> None:
    one = request([1], stop_ids=[9], max_tokens=2)
    block(one, [4, 9])
    assert one.finish_reason == "stop"


def test_the_limit_cuts_a_block() -> None:
    one = request([1], max_tokens=3)
    assert block(one, [4, 5, 6, 7, 8]) == [4, 5, 6]
    assert one.finish_reason == "length"


def test_the_context_limit_cuts_a_block() -> None:
    one = request([1, 2], max_tokens=100)
    one.max_context = 5
    assert block(one, [4, 5, 6, 7]) == [4, 5, 6]
    assert one.finish_reason == "length"


def test_a_stop_string_inside_a_block_ends_everything_there() -> None:
    one = request([1], stop=("%",))  # chr(4 + 33)
    assert block(one, [3, 4, 5]) == [3, 4]
    assert one.finish_reason == "stop"


def test_min_tokens_outlasts_stops() -> None:
    one = request([1], stop_ids=[9], min_tokens=3)
    assert block(one, [9, 4, 9, 5]) == [9, 4, 9]


def test_ignore_eos_goes_on_but_stop_token_ids_still_hold() -> None:
    one = request([1], stop_ids=[9], ignore_eos=True, stop_token_ids=(8,))
    assert block(one, [9, 9, 8, 9]) == [9, 9, 8]


def test_room_leaves_place_for_the_token_that_always_follows() -> None:
    one = request([1, 2, 3], max_tokens=10)
    assert one.room == 9
    one.max_context = 8
    assert one.room == 4
    block(one, [1, 1, 1, 1])
    assert one.room == 0


def test_offered_is_accepted_plus_rejected() -> None:
    one = request([1])
    tree = TokenTree.chain(1, [4, 5, 6])
    one.commit(tree, VerifyOutcome(np.array([0, 1]), 7, np.array([4, 7])), None)
    one.commit(TokenTree.root(7), VerifyOutcome(np.array([0]), 8, np.array([8])), None)
    speculation = one.speculation
    assert (speculation.rounds, speculation.offered, speculation.accepted, speculation.rows) == (2, 3, 1, 5)
    assert one.output == [4, 7, 8]


def test_tokens_reads_prompt_and_reply_as_one_text() -> None:
    one = request([1, 2, 3])
    block(one, [4, 5])
    text = [1, 2, 3, 4, 5]
    assert all(one.tokens(i, j) == text[i:j] for i in range(6) for j in range(i, 6))


def test_unseeded_requests_differ() -> None:
    assert request([1]).seed != request([1]).seed
    assert request([1], seed=5).seed == request([1], seed=5).seed == 5
