"""AdaSpark's acceptance model: fitted online to the target's outcomes, and guarded (§3.3).

    price ── the fitted model (Eq. 6), or the head-based estimate while the guard prefers it
    learn ── label every child of every accepted parent, placed or not
          ── guard: score both prices of them, before either learns
          ── Eq. 6's weights by FTRL on their deviation from the prior; the request's intercept and offset by AdaGrad

The gradient of a family's -ln q by a score is q - [right]. Each labelled parent is one update, since it is one draw of
the softmax, and the gate counts draws; those of a round are taken at the same weights, in one step.

Weights are shared by all requests and kept. Intercept and offset belong to a request: `forget` drops them, and beyond
`config.requests` the longest unheard-of ones go. A preempted request finds them again.

Temperature is a term of the scores: see `terms`. Trees of genuine draws (`reject`) are not learned from: whether a
draw is kept is not whether it is the target's choice.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from firesteel.accept.base import Labels, labels_of
from firesteel.accept.config import AcceptanceConfig
from firesteel.accept.explore import Explorer
from firesteel.accept.guard import Guard
from firesteel.accept.head import head_based
from firesteel.accept.terms import NO_BUCKET, PRIOR, SLOTS, Terms, softmax, terms_of
from firesteel.candidates import NGRAM_BUCKETS, Candidates, share_out
from firesteel.errors import DamagedState
from firesteel.fit.adagrad import AdaGrad
from firesteel.fit.ftrl import Ftrl
from firesteel.fit.stored import field, floats
from firesteel.tree import FloatArray, IntArray, Proposal


class _Request:
    """What is learned of one request alone."""

    def __init__(self, config: AcceptanceConfig) -> None:
        self.intercept = AdaGrad(config.intercept)  # b_req of Eq. 6
        self.offset = AdaGrad(config.offset)  # of the head-based estimate


class Multinomial:
    """An `AcceptanceModel` whose candidates compete within their family."""

    def __init__(self, config: AcceptanceConfig | None = None) -> None:
        self.config = config or AcceptanceConfig()
        self.terms = Ftrl(PRIOR, self.config.terms)
        self.buckets = Ftrl(np.zeros(SLOTS), self.config.buckets)
        self.guard = Guard(self.config.half_life)
        self.explorer = Explorer(self.config.period)
        self._requests: dict[str, _Request] = {}  # the latest heard of last
        self._described = WeakKeyDictionary[Candidates, Terms]()  # what was priced is learned from soon after

    def price(self, candidates: Candidates) -> FloatArray:
        """See `AcceptanceModel`."""
        return self.fitted(candidates) if self.guard.trusts_fit else self.by_head(candidates)

    def fitted(self, candidates: Candidates) -> FloatArray:
        """`float64[N]` Eq. 6. A family sums to less than 1: the rest is "none"."""
        return self._fitted(candidates, self._terms_of(candidates))

    def by_head(self, candidates: Candidates) -> FloatArray:
        """`float64[N]` the head-based estimate as a price: families that sum to more than 1 are scaled down to it."""
        return share_out(candidates.tree.parents, self._by_head(candidates))

    def explore(self, candidates: Candidates, order: IntArray, width: int) -> IntArray:
        """The rows to verify; see `Explorer.choose`. Once per request and round, since it counts them."""
        return self.explorer.choose(candidates, order, width)

    def learn(self, candidates: Candidates, kept: IntArray, wanted: IntArray) -> None:
        """See `AcceptanceModel`."""
        assert candidates.tree.proposal is Proposal.FIXED, "of drawn trees nothing is labelled"
        labels = labels_of(candidates, kept, wanted)
        if labels.count == 0:
            return
        terms, rows = self._terms_of(candidates), labels.rows
        fitted, alone = self._fitted(candidates, terms)[rows], self._by_head(candidates)
        by_head = share_out(candidates.tree.parents, alone)[rows]
        self.guard.score(fitted, by_head, labels.right, labels.count)
        self.explorer.count(candidates, labels)
        request = self._heard_of(candidates.view.request_id)
        request.offset.update(np.bincount(labels.families, alone[rows] - labels.right))
        self._fit(terms, labels, fitted, request)

    def _fit(self, terms: Terms, labels: Labels, q: FloatArray, request: _Request) -> None:
        """One step of all that Eq. 6 is made of, from prices `q` of the labelled rows."""
        rows, families, error = labels.rows, labels.families, q - labels.right
        by_family = np.where(families == np.arange(labels.count)[:, None], error, 0.0)  # [families, n]
        self.terms.update_together(by_family @ terms.features[rows])
        slots = families * SLOTS + terms.slots[rows]
        touched = np.bincount(slots, error, minlength=labels.count * SLOTS).reshape(-1, SLOTS)
        touched[:, NO_BUCKET] = 0.0
        self.buckets.update_together(touched)
        request.intercept.update(by_family.sum(1))

    def forget(self, request_id: str) -> None:
        """See `AcceptanceModel`."""
        self._requests.pop(request_id, None)

    def reset(self) -> None:
        """Back to the prior, everything forgotten."""
        self.terms.reset()
        self.buckets.reset()
        self.guard.reset()
        self.explorer.reset()
        self._requests.clear()

    def state(self) -> dict[str, Any]:
        """See `AcceptanceModel`: the weights, the guard's losses and the buckets' label counts."""
        return {
            "terms": self.terms.state(),
            "buckets": self.buckets.state(),
            "guard": self.guard.state(),
            "labels": self.explorer.labels.tolist(),
        }

    def load(self, state: Any) -> None:
        """See `AcceptanceModel`."""
        self.reset()
        try:
            self.terms.load(field(state, "terms"))
            self.buckets.load(field(state, "buckets"))
            self.guard.load(field(state, "guard"))
            self.explorer.labels = floats(state, "labels", (NGRAM_BUCKETS,), least=0.0)
        except DamagedState:
            self.reset()
            raise

    def _terms_of(self, candidates: Candidates) -> Terms:
        if (terms := self._described.get(candidates)) is None:
            terms = self._described[candidates] = terms_of(candidates, self.config)
        return terms

    def _fitted(self, candidates: Candidates, terms: Terms) -> FloatArray:
        request = self._requests.get(candidates.view.request_id)
        intercept = 0.0 if request is None else request.intercept.value
        scores = terms.score(self.terms.weights, self.buckets.weights, intercept)
        return softmax(scores, candidates.tree.parents)

    def _by_head(self, candidates: Candidates) -> FloatArray:
        request = self._requests.get(candidates.view.request_id)
        return head_based(candidates, 0.0 if request is None else request.offset.value, self.config.least)

    def _heard_of(self, request_id: str) -> _Request:
        """The request's own part, now the latest; the oldest of too many goes."""
        request = self._requests.pop(request_id, None) or _Request(self.config)
        self._requests[request_id] = request
        if len(self._requests) > self.config.requests:
            del self._requests[next(iter(self._requests))]
        return request
