"""Which widths are measured, and when: AdaSpark §3.2 without any milliseconds."""

from __future__ import annotations

import numpy as np
import pytest

from firesteel.cost.config import CostConfig
from firesteel.cost.ladder import Ladder
from firesteel.errors import DamagedState, InvalidParameter

WIDTHS = [1, 2, 4, 8, 16, 32, 64]


def measured(available: int = 64, requests: int = 1, rounds: int = 100) -> tuple[Ladder, list[int]]:
    """A ladder after a cold start, and the widths that it asked for."""
    ladder, asked = Ladder(CostConfig()), []
    for _ in range(rounds):
        width = ladder.next(requests, available)
        if width is not None:
            asked.append(width)
            ladder.count(width)
    return ladder, asked


def held(ladder: Ladder, width: int) -> None:
    ladder.hold(0)
    assert [ladder.hold(width) for _ in range(8)] == [False] * 7 + [True]


def test_three_measurements_each_narrowest_first() -> None:
    ladder, asked = measured()
    assert asked == [width for width in WIDTHS for _ in range(3)]
    assert ladder.priced().tolist() == WIDTHS


def test_a_narrower_round_does_not_count() -> None:
    ladder = Ladder(CostConfig())
    for _ in range(3):
        ladder.count(1)
    assert ladder.next(1, 64) == 2
    assert not ladder.count(3)
    for _ in range(10):
        ladder.count(1)
    assert ladder.next(1, 64) == 2


def test_widths_that_no_tree_fills_wait_and_the_reach_takes_their_place() -> None:
    """57 rows, as the drafters of the paper offer."""
    ladder, asked = measured(available=57)
    assert asked == [width for width in [*WIDTHS[:-1], 57] for _ in range(3)]
    assert ladder.next(1, 64) == 64, "once a tree is wide enough"


def test_one_short_tree_is_no_reach() -> None:
    ladder = Ladder(CostConfig())
    for _ in range(3):
        ladder.count(1)
        ladder.count(2)
    assert [ladder.next(1, available) for available in (3, 3, 64, 3)] == [None, None, 4, None]
    assert 3 not in ladder.measured


def test_a_batch_measures_no_width_below_its_anchors() -> None:
    _, asked = measured(available=200, requests=5)
    assert asked == [8] * 3 + [16] * 3 + [32] * 3 + [64] * 3
    _, asked = measured(available=700, requests=70)
    assert asked == [128] * 3


def test_gaps_lie_between_priced_widths() -> None:
    ladder, _ = measured()
    held(ladder, 8)
    gaps = ladder.gaps(np.arange(7.0) + 1.0)
    assert gaps.bottoms.tolist() == [2, 4, 8, 16, 32]
    assert gaps.tops.tolist() == [4, 8, 16, 32, 64]
    assert gaps.most_rows.tolist() == [3, 7, 15, 31, 63]
    assert gaps.least_ms.tolist() == [2, 3, 4, 5, 6]
    assert gaps.top_ms.tolist() == [3, 4, 5, 6, 7]


def split(
    held_width: int, could_win: list[bool], ms: list[float], *, available: int = 64, requests: int = 1
) -> int | None:
    """The width that a cold ladder adds: gaps are 2-4, 4-8, 8-16, 16-32, 32-64."""
    ladder, _ = measured(requests=requests)
    ladder.next(requests, available)
    held(ladder, held_width)
    gaps = ladder.gaps(np.array(ms))
    return ladder.split(gaps, np.array(could_win[: len(gaps.tops)]))


FLAT = [10.0] * 7
STEEP = [10.0, 13.0, 17.0, 22.0, 29.0, 38.0, 50.0]


def test_a_split_takes_the_nearest_gap_that_could_win() -> None:
    assert split(8, [True] * 5, FLAT) == 6, "a tie goes to the narrower class"
    assert split(8, [False, False, True, True, True], FLAT) == 12
    assert split(8, [True, False, False, False, True], FLAT) == 3
    assert split(8, [False] * 5, FLAT) is None


def test_a_steep_gap_is_split_next_to_the_held_width() -> None:
    assert split(8, [False, False, True, False, False], STEEP) == 9
    assert split(8, [False, True, False, False, False], STEEP) == 7
    assert split(8, [False, False, False, True, False], STEEP) == 17
    assert split(64, [True, False, False, False, False], STEEP) == 3


def test_what_this_round_cannot_fill_is_not_split() -> None:
    assert split(8, [False, False, True, False, False], FLAT, available=11) == 11
    ladder, _ = measured()
    ladder.next(1, 11)
    held(ladder, 8)
    assert ladder.gaps(np.array(FLAT)).most_rows.tolist() == [3, 7, 11]


def test_a_new_width_is_measured_next_and_splits_wait_for_it() -> None:
    ladder, _ = measured()
    held(ladder, 8)
    gaps = ladder.gaps(np.array(FLAT))
    assert ladder.split(gaps, np.array([False, False, True, False, False])) == 12
    assert not ladder.hold(8), "the chooser must hold on for 8 rounds more"
    assert ladder.next(1, 64) == 12
    assert 8 not in ladder.gaps(np.array(FLAT)).bottoms
    for _ in range(3):
        ladder.count(12)
    assert ladder.next(1, 64) is None
    assert ladder.gaps(np.array([10.0] * 8)).bottoms.tolist() == [2, 4, 8, 12, 16, 32]


def test_at_most_24_widths_are_learned() -> None:
    ladder, _ = measured()
    for width in range(40, 40 + 24 - 7):
        for _ in range(3):
            ladder.count(width) if width in ladder.measured else ladder.measured.update({width: 0})
    assert len(ladder.measured) == 24
    assert not any(ladder.hold(8) for _ in range(20))


def test_above_the_ladder_a_batch_grows_by_the_same_test() -> None:
    ladder, asked = measured(available=512, requests=8)
    assert max(asked) == 64, "that 512 rows could be filled is no reason to measure them"
    held(ladder, 64)
    gaps = ladder.gaps(np.array([10.0] * 4))
    assert (gaps.bottoms[-1], gaps.most_rows[-1], gaps.top_ms[-1]) == (64, 128, np.inf)
    assert ladder.split(gaps, np.arange(len(gaps.tops)) == len(gaps.tops) - 1) == 128


def test_below_the_first_price_of_a_batch_anything_may_be() -> None:
    """5 requests: the ladder's 8 is the first price, and 5 rows would be plain decoding."""
    ladder, _ = measured(available=64, requests=5)
    held(ladder, 8)
    gaps = ladder.gaps(np.array([10.0] * 4))
    assert (gaps.bottoms[0], gaps.tops[0], gaps.most_rows[0], gaps.least_ms[0]) == (4, 8, 7, 0.0)
    assert ladder.split(gaps, np.arange(len(gaps.tops)) == 0) == 6


def test_state() -> None:
    ladder, _ = measured(available=57)
    again = Ladder(CostConfig())
    again.load(ladder.state())
    assert again.measured == ladder.measured
    for damaged in ({}, {"measured": [[1.5, 3]]}, {"measured": [[0, 3]]}, {"measured": [[2, 3], [2, 4]]}):
        with pytest.raises(DamagedState):
            again.load(damaged)
    assert again.measured == ladder.measured


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidParameter):
        CostConfig(tau=1.0)
    with pytest.raises(InvalidParameter):
        CostConfig(ladder=(2, 2, 4))
