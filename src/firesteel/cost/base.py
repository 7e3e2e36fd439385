"""What a cost model is: milliseconds of a round by its rows, and which numbers of rows are worth a price.

Rows are those of the whole verify, anchors included, over all requests of the batch. Its context is the mean over rows
of the context that each row attends to, so that rows x context is the attention's work whichever request a row belongs
to; with one request it is that request's context. (The paper serves one request. A total over requests, the other
choice, is what attention *reads*: it would make the law of one width depend on how many requests share it.)

One round, as a policy asks:

    offer = cost.offer(requests, available)         which widths there are; one may have to be measured
    ms = cost.verify_ms(offer.widths, context)      choose, unless offer.measure is set
    gaps = cost.held(width, context)                after a choice: where could a width inside win?
    cost.split(gaps, could_win)                     it will be measured next
    cost.learn(took)                                after the verify
    cost.refit()                                    whenever a request has ended
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from firesteel.tree import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Offer:
    """The widths of one round.

    Fields:
        measure: rows that this round is asked to verify, because their price is not known yet; or None.
        widths: `int64[n]` rows with a price, rising. Empty before anything is: then verify the anchors alone.
        seen_ms: the least that a verify of `measure` rows has taken, if there was one.
    """

    measure: int | None
    widths: IntArray
    seen_ms: float | None = None


@dataclass(frozen=True)
class Gaps:
    """Where no width is priced, between two that are: what the best of a gap could be (AdaSpark §3.2).

    Fields, all of length n but `held`:
        held: the width that the chooser holds.
        bottoms, tops: `int64` the priced widths around each gap, themselves outside it.
        most_rows: `int64` the widest inside that this round's trees can fill: it earns no less than any other inside.
        least_ms: `float64` the price of the bottom: nothing inside is taken to cost less.
        top_ms: `float64` the price of the top; infinite where nothing wider is priced.
    """

    held: int
    bottoms: IntArray
    tops: IntArray
    most_rows: IntArray
    least_ms: FloatArray
    top_ms: FloatArray

    @classmethod
    def none(cls, held: int) -> Gaps:
        """No gap."""
        rows, ms = np.zeros(0, np.int64), np.zeros(0)
        return cls(held, rows, rows, rows, ms, ms)


@dataclass(frozen=True)
class RoundCost:
    """What one round took.

    Fields:
        rows: verified, over the whole batch.
        context: their mean context; see `mean_context`.
        verify_ms: the target's forward.
        fixed_ms: what does not depend on the rows verified: the drafter and the building of trees.
        draft_rows: positions drafted over the batch; 0 if the drafter did not run.
        first: whether a request's first round is in it, which runs cold.
    """

    rows: int
    context: float
    verify_ms: float
    fixed_ms: float
    draft_rows: int
    first: bool


class CostModel(Protocol):
    """Milliseconds of a round. See the module for the order of the calls."""

    def offer(self, requests: int, available: int) -> Offer:
        """The widths of a round.

        Args:
            requests: in the batch; no offered width is narrower, since each keeps its anchor.
            available: rows of all candidates and anchors of this round.
        """
        ...

    def verify_ms(self, rows: ArrayLike, context: ArrayLike) -> FloatArray:
        """`float64[n]` of verifies of `rows` [n] at mean contexts `context`, [n] or one; infinite without a price."""
        ...

    def draft_ms(self, rows: int) -> float:
        """The round's fixed cost if `rows` positions are drafted; 0 before one was seen."""
        ...

    def held(self, width: int, context: float) -> Gaps:
        """Note that the chooser chose `width`; the gaps that may be split now, at that context: none, mostly."""
        ...

    def split(self, gaps: Gaps, could_win: BoolArray) -> int | None:
        """Learn a new width inside one of the gaps that could win [n]; return it, or None if there was none."""
        ...

    def learn(self, took: RoundCost) -> None:
        """Take in one finished round, chosen or measured."""
        ...

    def refit(self) -> None:
        """A request has ended: time for what is too slow to do in every round."""
        ...

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON values."""
        ...

    def load(self, state: Any) -> None:
        """Take up what `state` returned.

        Raises:
            DamagedState: it is something else; the model is empty then.
        """
        ...


def mean_context(contexts: Sequence[int], rows: Sequence[int]) -> float:
    """The mean context of a verify of `rows` [n] rows of requests at `contexts` [n]."""
    return sum(context * count for context, count in zip(contexts, rows, strict=True)) / sum(rows)
