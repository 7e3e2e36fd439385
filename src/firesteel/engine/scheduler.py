"""Which requests take part in the next round. Bookkeeping only: no tensors, no torch.

    waiting --admit--> running --finish--> gone
       ^                  |
       +----- preempt ----+        the newest first; its tokens are kept, its K/V is computed again

Admission is first come, first served. A round is either a prefill round (every running request that lacks K/V gets a
chunk) or a decode round (every running request has all of it).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from firesteel.engine.request import Request, Status
from firesteel.errors import OutOfSlots


class Slots(Protocol):
    """The part of the cache that a scheduler needs."""

    @property
    def free_slots(self) -> int: ...

    def acquire(self) -> int: ...

    def free(self, slot: int) -> None: ...


@dataclass(frozen=True)
class Batch:
    """The requests of one round.

    Fields:
        requests: in order of slot.
        chunks: for a prefill round, tokens to prefill per request; empty for a decode round.
    """

    requests: list[Request]
    chunks: list[int]

    @property
    def is_prefill(self) -> bool:
        """Whether the round computes K/V of committed text instead of new tokens."""
        return bool(self.chunks)


class Scheduler:
    """Admission, prefill, preemption.

    Args:
        slots: the cache's slots.
        cache_tokens: most tokens that the running requests may hold in the cache together.
        round_rows: most rows that one request may add in a round; kept free for each running request.
        chunk: most rows of one prefill round.
    """

    def __init__(self, slots: Slots, *, cache_tokens: int, round_rows: int, chunk: int) -> None:
        self._slots = slots
        self.cache_tokens = cache_tokens
        self.round_rows = round_rows
        self.chunk = chunk
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            OutOfSlots: the prompt does not fit into the cache even alone.
        """
        if self._need(request) > self.cache_tokens:
            raise OutOfSlots(
                f"request {request.id} has {request.length} tokens and needs {self.round_rows} more rows a round, but "
                f"the cache holds {self.cache_tokens} tokens"
            )
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request wherever it is; its slot is free at once."""
        if request in self.waiting:
            self.waiting.remove(request)
        request.finish("abort")
        self.retire()

    def retire(self) -> None:
        """Free the slots of finished requests."""
        for request in [r for r in self.running if r.status is Status.FINISHED]:
            self._release(request)

    def next_batch(self) -> Batch | None:
        """Admit, preempt, and choose the round; None when nothing is left to do."""
        self.retire()
        self._preempt()
        self._admit()
        if not self.running:
            return None
        behind = [request for request in self.running if request.to_prefill > 0]
        if not behind:
            return Batch(sorted(self.running, key=lambda request: request.slot), [])
        chosen: list[tuple[Request, int]] = []
        left = self.chunk
        for request in behind:
            if left == 0:
                break
            rows = min(request.to_prefill, left)
            chosen.append((request, rows))
            left -= rows
        chosen.sort(key=lambda pair: pair[0].slot)
        return Batch([request for request, _ in chosen], [rows for _, rows in chosen])

    def _need(self, request: Request) -> int:
        return request.length + self.round_rows

    def _admit(self) -> None:
        while self.waiting and self._slots.free_slots:
            used = sum(self._need(request) for request in self.running)
            if used + self._need(self.waiting[0]) > self.cache_tokens:
                return
            request = self.waiting.popleft()
            request.slot = self._slots.acquire()
            request.status = Status.RUNNING
            self.running.append(request)

    def _preempt(self) -> None:
        """While the running requests outgrow the cache, the newest goes back to the head of the queue."""
        while len(self.running) > 1 and sum(self._need(request) for request in self.running) > self.cache_tokens:
            request = self.running[-1]
            self._release(request)
            request.status = Status.WAITING
            self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        self._slots.free(request.slot)
        request.slot = -1
        request.cached = 0
