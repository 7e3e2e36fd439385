"""The tally of `firesteel eval`, by hand."""

from __future__ import annotations

import pytest

from firesteel.bench.evaluate import Tally
from firesteel.bench.report import eval_tables


def test_acceptance_is_of_the_rounds_that_came_so_far() -> None:
    """Four rounds of up to three drafts: 3, 1 and 0 accepted, and 1 of 2 where the reply had room for no more.

    position   offered   reached   accepted
    1          4         4         3
    2          4         3         1
    3          3         1         1
    """
    tally = Tally()
    for drafted, kept in ((3, 3), (3, 1), (3, 0), (2, 1)):
        tally.add(drafted, kept, None)
        tally.tokens += kept + 1
    told = tally.summary()
    assert told["rounds"] == 4
    assert told["tokens"] == 9
    assert told["tokens_per_round"] == pytest.approx(9 / 4)
    assert told["acceptance"] == pytest.approx([3 / 4, 1 / 3, 1 / 1])
    assert told["acceptance_unconditional"] == pytest.approx([3 / 4, 1 / 4, 1 / 3])
    assert "confidence" not in told


def test_the_confidence_of_drafts_that_were_never_looked_at_does_not_count() -> None:
    tally = Tally()
    tally.add(3, 3, [0.9, 0.8, 0.7])
    tally.add(3, 1, [0.6, 0.4, 0.99])  # the third stood below a rejected one
    told = tally.summary()["confidence"]
    assert tally.confidence == [0.9, 0.8, 0.7, 0.6, 0.4]
    assert tally.right == [True, True, True, True, False]
    assert told["mean"] == pytest.approx(3.4 / 5)
    assert told["accepted"] == pytest.approx(4 / 5)
    assert told["auc"] == 1.0
    assert told["brier"] == pytest.approx((0.01 + 0.04 + 0.09 + 0.16 + 0.16) / 5)


def test_sums_are_as_if_counted_together() -> None:
    rounds = [(3, 2, [0.5, 0.5, 0.5]), (1, 1, [0.9]), (0, 0, None), (3, 0, [0.1, 0.2, 0.3])]
    parts, whole = [Tally(), Tally()], Tally()
    for number, one in enumerate(rounds):
        parts[number % 2].add(*one)
        whole.add(*one)
    both = parts[0].plus(parts[1]).summary()
    expected = whole.summary()
    assert both.pop("confidence") == pytest.approx(expected.pop("confidence"))
    assert both == expected


def test_a_round_without_a_draft_is_a_round() -> None:
    tally = Tally(tokens=1)
    tally.add(0, 0, None)
    assert tally.summary()["acceptance"] == []
    assert tally.summary()["tokens_per_round"] == 1.0


def test_a_position_that_was_never_reached_has_no_acceptance() -> None:
    tally = Tally()
    tally.add(3, 0, None)
    assert tally.summary()["acceptance"] == [0.0]
    assert tally.summary()["acceptance_unconditional"] == [0.0, 0.0, 0.0]


def test_the_table_has_all_columns_for_a_source_that_never_got_so_far() -> None:
    short, whole = Tally(tokens=1), Tally(tokens=4)
    short.add(0, 0, None)
    whole.add(3, 3, [0.9, 0.9, 0.9])
    total = short.plus(whole).summary()
    run = {"temperature": 0.0, "drafts": 3, **total, "sources": {"a": short.summary(), "b": whole.summary()}}
    tables = [part.splitlines() for part in eval_tables({"temperatures": [run]}).split("\n\n")]
    for lines in tables[1:]:
        rows = [line for line in lines if line.startswith("|")]
        assert len({line.count("|") for line in rows}) == 1, rows
    assert not any(line.startswith("| a |") for line in tables[-1])
