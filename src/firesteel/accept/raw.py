"""The baseline: what the drafter and the n-gram source say of themselves, and nothing learned."""

from __future__ import annotations

from typing import Any

from firesteel.candidates import Candidates
from firesteel.tree import FloatArray, IntArray


class Raw:
    """The candidates' own prices: the drafter's probability of a token, and `ngram_price`."""

    def price(self, candidates: Candidates) -> FloatArray:
        """See `AcceptanceModel`."""
        return candidates.tree.q

    def learn(self, candidates: Candidates, kept: IntArray, wanted: IntArray) -> None:
        """Nothing."""

    def forget(self, request_id: str) -> None:
        """Nothing."""

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load(self, state: Any) -> None:
        """Nothing."""
