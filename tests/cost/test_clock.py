"""A clock that tells the machine's speed and not the batch's size."""

from __future__ import annotations

import pytest

from firesteel.cost.clock import Clock
from firesteel.errors import DamagedState


def ticked(clock: Clock, draft_rows: int, ms: float, rounds: int = 8) -> float | None:
    for _ in range(rounds):
        clock.tick(draft_rows, ms)
    return clock.now


def test_slower_and_faster_within_8_rounds() -> None:
    clock = Clock(8)
    assert ticked(clock, 7, 10.0) == 1.0
    assert ticked(clock, 7, 20.0, rounds=7) == 1.0
    assert ticked(clock, 7, 20.0, rounds=1) == 2.0
    assert ticked(clock, 7, 10.0, rounds=1) == 1.0


def test_a_larger_batch_is_not_a_slower_machine() -> None:
    clock = Clock(8)
    ticked(clock, 7, 10.0)
    assert ticked(clock, 28, 25.0, rounds=20) == 1.0
    ticked(clock, 28, 50.0)
    assert clock.now == 2.0
    assert ticked(clock, 14, 30.0) == 2.0, "its reference was taken while the machine was slow"
    assert ticked(clock, 14, 15.0) == 1.0


def test_the_fixed_cost_by_what_is_drafted() -> None:
    clock = Clock(8)
    assert clock.ms(7) == 0.0
    ticked(clock, 8, 10.0)
    ticked(clock, 16, 14.0)
    assert [clock.ms(rows) for rows in (4, 8, 12, 99)] == [10.0, 10.0, 12.0, 14.0]
    ticked(clock, 16, 28.0)
    assert clock.ms(8) == 20.0


def test_after_a_restart_the_speed_is_unknown_and_the_references_are_not() -> None:
    clock, again = Clock(8), Clock(8)
    ticked(clock, 7, 10.0)
    again.load(clock.state())
    assert again.now is None
    assert ticked(again, 7, 15.0, rounds=1) == 1.5


def test_damage() -> None:
    for damaged in (None, {}, {"references": [[7, 0.0]]}, {"references": [[7.5, 1.0]]}, {"references": [7]}):
        with pytest.raises(DamagedState):
            Clock(8).load(damaged)
