"""The scheduler against a step-by-step simulation: slots come back, nobody starves, the cache is never overrun."""

from __future__ import annotations

import random

import pytest

from firesteel.engine.request import Request, Status
from firesteel.engine.scheduler import Scheduler
from firesteel.errors import OutOfSlots
from tests.toys import request


class Slots:
    """Slots without a cache."""

    def __init__(self, count: int) -> None:
        self.free_list, self.count = set(range(count)), count

    @property
    def free_slots(self) -> int:
        return len(self.free_list)

    def acquire(self) -> int:
        slot = min(self.free_list)
        self.free_list.remove(slot)
        return slot

    def free(self, slot: int) -> None:
        assert slot not in self.free_list
        self.free_list.add(slot)


def make(slots: int = 3, cache_tokens: int = 100, round_rows: int = 8, chunk: int = 16) -> tuple[Scheduler, Slots]:
    of = Slots(slots)
    return Scheduler(of, cache_tokens=cache_tokens, round_rows=round_rows, chunk=chunk), of


def play(scheduler: Scheduler, request: Request, tokens: int) -> None:
    """What a decode round does to a request."""
    request.cached += tokens
    request.output += [0] * tokens


def test_prefill_comes_in_chunks_and_leaves_the_anchor() -> None:
    scheduler, _ = make()
    one = request(range(40))
    scheduler.add(one)
    seen = []
    while (batch := scheduler.next_batch()) is not None and batch.is_prefill:
        seen.append(batch.chunks[0])
        one.cached += batch.chunks[0]
    assert seen == [16, 16, 7]
    assert batch is not None
    assert batch.requests == [one]


def test_a_chunk_is_shared_in_order_of_arrival() -> None:
    scheduler, _ = make()
    first, second = request(range(11), "first"), request(range(31), "second")
    scheduler.add(first)
    scheduler.add(second)
    batch = scheduler.next_batch()
    assert batch is not None
    assert [(r.id, rows) for r, rows in zip(batch.requests, batch.chunks, strict=True)] == [
        ("first", 10),
        ("second", 6),
    ]


def test_first_come_first_served() -> None:
    """A short request behind a long one that does not fit yet waits: otherwise the long one could wait forever."""
    scheduler, _ = make(cache_tokens=60)
    running, long, short = request(range(30), "running"), request(range(40), "long"), request(range(2), "short")
    for one in (running, long, short):
        scheduler.add(one)
    scheduler.next_batch()
    assert [one.id for one in scheduler.running] == ["running"]


def test_the_newest_is_preempted_and_keeps_its_tokens() -> None:
    scheduler, slots = make(cache_tokens=60)
    old, new = request(range(10), "old"), request(range(10), "new")
    scheduler.add(old)
    scheduler.add(new)
    while (batch := scheduler.next_batch()) is not None and batch.is_prefill:
        for one, rows in zip(batch.requests, batch.chunks, strict=True):
            one.cached += rows
    for _ in range(13):
        for one in scheduler.running:
            play(scheduler, one, 1)
        scheduler.next_batch()
    assert scheduler.running == [old]
    assert list(scheduler.waiting) == [new]
    assert (new.cached, new.slot, new.status) == (0, -1, Status.WAITING)
    assert len(new.output) == 13
    assert new.to_prefill == 22
    assert slots.free_slots == 2


def test_a_prompt_that_can_never_fit_is_refused_with_its_numbers() -> None:
    scheduler, _ = make(cache_tokens=50)
    with pytest.raises(OutOfSlots, match=r"45 tokens.*50"):
        scheduler.add(request(range(45)))


def test_abort_frees_the_slot_at_once_wherever_the_request_is() -> None:
    scheduler, slots = make(slots=1)
    running, waiting = request([1], "running"), request([1], "waiting")
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.next_batch()
    scheduler.abort(waiting)
    assert not scheduler.waiting
    scheduler.abort(running)
    assert slots.free_slots == 1
    assert scheduler.next_batch() is None


@pytest.mark.parametrize("seed", range(20))
def test_simulation(seed: int) -> None:
    """Random arrivals, lengths, aborts: invariants hold at each step and everybody ends."""
    chance = random.Random(seed)
    scheduler, slots = make(slots=chance.randint(1, 4), cache_tokens=chance.randint(60, 140))
    todo = [request(range(chance.randint(1, 30)), f"r{i}", max_tokens=chance.randint(1, 20)) for i in range(15)]
    alive, ended = list(todo), 0
    for _step in range(2000):
        if todo and chance.random() < 0.3:
            scheduler.add(todo.pop())
        if chance.random() < 0.03 and scheduler.running:
            victim = chance.choice(scheduler.running)
            scheduler.abort(victim)
        batch = scheduler.next_batch()
        running = scheduler.running
        assert len({one.slot for one in running}) == len(running) == slots.count - slots.free_slots
        assert sum(one.length + 8 for one in running) <= scheduler.cache_tokens or len(running) == 1
        assert all(one.status is Status.RUNNING for one in running)
        if batch is None:
            if not todo:
                break
            continue
        for i, one in enumerate(batch.requests):
            if batch.is_prefill:
                assert 0 < batch.chunks[i] <= one.to_prefill
                one.cached += batch.chunks[i]
            else:
                assert one.to_prefill == 0
                play(scheduler, one, 1)
                if len(one.output) >= one.params.max_tokens:
                    one.finish("length")
    ended = sum(one.status is Status.FINISHED for one in alive)
    assert ended == len(alive)
    assert slots.free_slots == slots.count
