"""How fast the machine runs now, by work that every round does (AdaSpark §3.2, the factor D_now / D_k).

The round's fixed cost D, the drafter and the building of trees, is paid whatever the width, so it tells how prices that
were measured long ago have aged. With one request D is one number. In a batch it depends on how much is drafted, so
each amount of drafting has a reference of its own, and the clock reads D over its reference: a batch that grows is not
a machine that slows. A reference is taken at the speed that the others say the machine has at that time.

The reading is the lowest of the last 8 rounds, as a level is (the paper does not say). A median would be stored with a
width whenever five rounds of eight are disturbed, and make it look cheap until it runs again.

A round without a draft does nothing that is the same in every round: the clock stands still.
"""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import Any, Final

import numpy as np

from firesteel.errors import DamagedState
from firesteel.fit.stored import floats


class Clock:
    """Slowness: 1 at the speed of the first rounds, 2 at half of it."""

    AMOUNTS: Final = 256  # amounts of drafting remembered
    FIRST: Final = 3  # times that an amount is seen before it tells the time

    def __init__(self, window: int) -> None:
        self._references: dict[int, float] = {}  # positions drafted -> milliseconds at a slowness of 1
        self._starting: dict[int, list[float]] = {}  # the same, not yet seen often enough
        self._readings: deque[float] = deque(maxlen=window)

    @property
    def now(self) -> float | None:
        """The slowness now; None after a restart, before it can be told. The first rounds of all define it."""
        if self._readings:
            return min(self._readings)
        return None if self._references else 1.0

    def tick(self, draft_rows: int, ms: float) -> None:
        """A round drafted this many positions, and its fixed cost was `ms`, above 0."""
        reference = self._references.get(draft_rows)
        if reference is not None:
            self._readings.append(ms / reference)
            return
        seen = self._starting.setdefault(draft_rows, [])
        seen.append(ms / (self.now or 1.0))
        if len(seen) == self.FIRST:
            self._references[draft_rows] = median_low(self._starting.pop(draft_rows))
            self._readings.append(ms / self._references[draft_rows])
        if len(self._references) > self.AMOUNTS:
            del self._references[next(iter(self._references))]
        if len(self._starting) > self.AMOUNTS:
            del self._starting[next(iter(self._starting))]

    def ms(self, draft_rows: int) -> float:
        """The fixed cost now, between the amounts of drafting that are known; 0 before any is."""
        if draft_rows in self._references:
            return self._references[draft_rows] * (self.now or 1.0)
        known = {rows: median_low(seen) for rows, seen in self._starting.items()} | self._references
        if not known:
            return 0.0
        amounts = sorted(known)
        return float(np.interp(draft_rows, amounts, [known[rows] for rows in amounts])) * (self.now or 1.0)

    def state(self) -> dict[str, Any]:
        """The references, as JSON values. Readings are of this moment and do not outlive it."""
        return {"references": [[rows, ms] for rows, ms in self._references.items()]}

    def load(self, state: Any) -> None:
        """Take up what `state` returned.

        Raises:
            DamagedState: it is something else; nothing is taken up.
        """
        references = floats(state, "references", (-1, 2), least=0.0)
        if (references == 0.0).any() or (references[:, 0] % 1.0 != 0.0).any():
            raise DamagedState(f"stored state: 'references' holds {references.tolist()}, out of its range")
        self._references = {int(rows): ms for rows, ms in references.tolist()}
        self._starting.clear()
        self._readings.clear()
