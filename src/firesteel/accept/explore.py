"""Exploration: a row now and then for n-gram candidates that nothing is known of (AdaSpark §3.3, Algorithm 1 line 12).

A candidate is labelled when its parent is accepted, placed or not. So the drafter's need no exploration, but what hangs
below an n-gram row is labelled only if that row is placed, and a bucket priced too low never is.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from firesteel.accept.base import Labels
from firesteel.candidates import NGRAM_BUCKETS, Candidates
from firesteel.tree import BoolArray, FloatArray, IntArray, Source

NGRAM: Final = int(Source.NGRAM)  # an enum's comparisons take time


class Explorer:
    """Counts the labels of each n-gram bucket, and says which row is to teach more.

    Args:
        period: tree rounds with n-gram candidates from one exploration to the next. A round is one request's tree, so a
            batch has as many as it has requests. One that is due and finds nothing unplaced passes.
    """

    def __init__(self, period: int) -> None:
        self._period = period
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.labels: FloatArray = np.zeros(NGRAM_BUCKETS)
        self._rounds = 0

    def count(self, candidates: Candidates, labels: Labels) -> None:
        """Take in a round's labels of n-gram rows."""
        buckets = candidates.bucket[labels.rows[_of_text(candidates, labels.rows)]]
        self.labels += np.bincount(buckets, minlength=NGRAM_BUCKETS)

    def choose(self, candidates: Candidates, order: IntArray, width: int) -> IntArray:
        """The rows to verify: the first `width` of `order`, or every 16th time its last row given to another.

        That other is, of the n-gram rows left out whose parents stay, the one of the least-labelled bucket; the
        likelier one of equals.

        Args:
            order: rows, best first, the anchor before all (`TokenTree.best_first`); those that may be verified.
            width: rows to verify, the anchor included.
        """
        chosen = order[:width]
        if width < 2 or not _of_text(candidates, order).any():
            return chosen
        self._rounds += 1
        if self._rounds % self._period:
            return chosen
        stays = np.zeros(candidates.tree.width, np.bool_)
        stays[order[: width - 1]] = True
        left = order[width:]
        frontier = left[_of_text(candidates, left) & stays[candidates.tree.parents[left]]]
        if len(frontier) == 0:
            return chosen
        taught = self.labels[candidates.bucket[frontier]]
        return np.append(order[: width - 1], frontier[int(np.argmin(taught))])


def _of_text(candidates: Candidates, rows: IntArray) -> BoolArray:
    """`bool[n]` which of `rows` only the text proposes."""
    of_text: BoolArray = candidates.tree.sources[rows] == NGRAM
    return of_text
