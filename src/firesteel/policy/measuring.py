"""When an unpriced width is worth measuring (ours: AdaSpark measures its whole ladder at once, whatever it costs).

On a target whose rows are dear, three rounds of 64 rows cost a short reply more than speculation will ever give back.
So a measurement waits until it could win, if it cost no more than the narrowest width and earned as much as all
candidates would, and until what it may lose fits a share of all time. (The bound of a split, the price of the next
narrower width, would hide a wide step that is cheaper.) What it may lose is guessed beforehand and not read off the
clock: a burst of interference says nothing about a width.

Not known here: which width is next.
"""

from __future__ import annotations

from firesteel.tree import FloatArray, IntArray


class Measuring:
    """The budget of measurements.

    Args:
        share: of all time, that measurements may lose against the best width that is known.
        slope: cost of a row while only one width is priced, as a share of it.
    """

    def __init__(self, share: float, slope: float) -> None:
        self._share, self._slope = share, slope
        self.elapsed_ms = self.lost_ms = 0.0

    def take(self, loss_ms: float) -> bool:
        """Whether there is time for a measurement that may lose this much; it is spent then."""
        if self.lost_ms + loss_ms > self._share * self.elapsed_ms:
            return False
        self.lost_ms += loss_ms
        return True

    def guess_ms(self, rows: int, widths: IntArray, ms: FloatArray) -> float:
        """What a round of `rows` rows may take: on the line through its neighbours, or through the last two below it.

        Args:
            rows: not measured yet.
            widths, ms: `[n]`, n >= 1, none falling: the priced widths and their rounds.
        """
        if len(widths) == 1:
            return float(ms[0]) * (1.0 + self._slope * max(0, rows - int(widths[0])))
        right = min(max(int(widths.searchsorted(rows)), 1), len(widths) - 1)
        slope = float(ms[right] - ms[right - 1]) / float(widths[right] - widths[right - 1])
        return float(ms[right - 1]) + slope * (rows - int(widths[right - 1]))
