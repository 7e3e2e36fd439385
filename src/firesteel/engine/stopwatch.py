"""Where a round's milliseconds go."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Sums wall time by name; what is under no name is the rest.

    Args:
        clock: seconds; tests give a scripted one.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._begun = clock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a block under a name."""
        begun = self._clock()
        try:
            yield
        finally:
            self._parts[name] += self._clock() - begun

    def ms(self, name: str) -> float:
        """Milliseconds under a name since the last restart."""
        return self._parts[name] * 1e3

    def rest_ms(self) -> float:
        """Milliseconds since the last restart that were under no name."""
        return (self._clock() - self._begun - sum(self._parts.values())) * 1e3

    def restart(self) -> None:
        """Begin a new round: what passes until the next restart belongs to it."""
        self._parts.clear()
        self._begun = self._clock()
