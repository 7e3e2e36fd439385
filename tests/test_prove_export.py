"""What scripts/prove_export.py reads from a server's log and what it calls equal. No program runs here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def script() -> Any:
    file = Path(__file__).parents[1] / "scripts" / "prove_export.py"
    spec = importlib.util.spec_from_file_location("prove_export", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules["prove_export"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said(*candidates: tuple[int, int, int, float]) -> str:
    return "\n".join(
        f" - seq_id 0, draft candidate {rank:3d}, pos {position:3d}: {token:6d} ({chance:8.3f}) 'x'"
        for rank, position, token, chance in candidates
    )


@pytest.mark.parametrize("first", [0, 1])
def test_blocks_are_where_positions_start_again(script: Any, first: int) -> None:
    """Two blocks of two; of the first one draft was accepted. Blocks in place start at position 1."""
    log = said(
        (0, first, 7, 0.9), (1, first, 8, 0.1), (0, first + 1, 9, 0.6),
        (0, first, 5, 0.5), (0, first + 1, 6, 0.5),
    )  # fmt: skip
    assert script.drafts_in(log, 10, [1, 7, 2, 3]) == {
        11: [[(7, 0.9), (8, 0.1)], [(9, 0.6)]],
        13: [[(5, 0.5)], [(6, 0.5)]],
    }


def test_a_reply_that_took_every_draft_is_its_drafts(script: Any) -> None:
    """A token of the prompt's, two drafts and the target's own, two drafts and the target's own, and half a block."""
    drafts = script.drafts_of_forced(10, [1, 7, 8, 2, 9, 6, 3, 4], 2)
    assert {length: [one[0][0] for one in block] for length, block in drafts.items()} == {11: [7, 8], 14: [9, 6]}


def test_equal_within_three_decimals_and_not_beyond(script: Any) -> None:
    mine = {11: [[(7, 0.6002), (8, 0.3001)], [(9, 0.5), (4, 0.499)]]}
    found = script.Comparison([0, 0], [0, 0])
    found.add({11: [[(7, 0.6), (8, 0.3)], [(4, 0.5), (9, 0.5)]]}, mine)
    assert (found.blocks, found.equal, found.compared, found.same) == (1, 0, [1, 1], [1, 0])
    assert found.odds == [True, True]
    assert found.leads == [pytest.approx(0.002, abs=1e-4)]
    found.add({11: [[(7, 0.65), (8, 0.25)], [(9, 0.5)]]}, mine)
    assert found.odds == [True, True, False]
    assert found.equal == 1


def test_shorter_blocks_are_not_compared(script: Any) -> None:
    found = script.Comparison([0, 0], [0, 0])
    found.add({11: [[(7, 0.6)]]}, {11: [[(7, 0.6)]]})
    assert found.blocks == 0
