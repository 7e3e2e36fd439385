"""`auto`: verify the rows that pay for themselves, with nothing to tune and nothing measured beforehand.

Every round takes the number of rows, over the whole batch, at which expected tokens per millisecond are highest,

    rate(k) = (requests + S(k)) / (draft + round of (requests + k) rows)        k = 0 is plain decoding,

where S(k) sums the survival Q of the k likeliest candidates of the batch (AdaSpark Eq. 1): one more row is worth the
same whichever request it belongs to. The time is that of the whole round, host work included, by `RoundCosts`; the
probabilities are by `AcceptCounts`. The target's choice at every kept row labels all candidates there, verified or
not, so a round of one row still teaches what the next candidates are worth, and standing still costs nothing.

Not known here: that a round's ratio is not the best price of its time (AdaSpark Prop. 5), and how costs grow with
context other than by following them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from statistics import median_low
from typing import Any, Final

import numpy as np

from firesteel.candidates import Candidates, candidates, share_out
from firesteel.fit.stored import field
from firesteel.ngram import MAX_DEPTH, Kind
from firesteel.policy.base import MAX_WIDTH, best_of_batch, check_width
from firesteel.policy.measured import LADDER, AcceptCounts, RoundCosts
from firesteel.rounds import Draft, Plan, RoundReport, RoundView
from firesteel.tree import FloatArray, IntArray, Source, TokenTree


@dataclass(frozen=True, kw_only=True)
class BreakEvenConfig:
    """What `auto` may be told; nothing needs to be.

    Fields:
        width: most rows of one request's tree, 1 to 64.
        slope: cost of a row that was never measured, as a share of a round of one row.
        margin: how much better than plain decoding the first round of speculation must promise to be.
        explore: share of all time that may be lost on measuring widths that look too dear.
        rest: most rounds without a draft after drafts that did not pay.
    """

    width: int = MAX_WIDTH
    slope: float = 0.03
    margin: float = 0.05
    explore: float = 0.01
    rest: int = 256

    def __post_init__(self) -> None:
        check_width(self.width)


@dataclass(frozen=True)
class _Grown:
    """What `learn` needs of one request's tree: its kinds of candidates, and which of them were verified."""

    candidates: TokenTree
    kinds: list[str]
    rows: IntArray


class BreakEven:
    """The policy `auto`."""

    name: Final = "auto"

    def __init__(self, config: BreakEvenConfig | None = None) -> None:
        self.config = config or BreakEvenConfig()
        self.costs = RoundCosts(self.config.slope)
        self.counts = AcceptCounts()
        self._grown: dict[str, _Grown] = {}
        self._speculating = False
        self._look = MAX_DEPTH  # tokens of an n-gram chain that are worth the host's time
        self._elapsed_ms = self._explored_ms = 0.0
        # Time before the verify with a draft and without, and how long drafts are to be left out.
        self._drafted = False
        self._draft_ms: dict[bool, deque[float]] = {True: deque(maxlen=8), False: deque(maxlen=8)}
        self._rest = self._resting = 0

    def plan(self, views: Sequence[RoundView]) -> Plan:
        """Draft as far as the tree may reach, or nothing while drafts have not been worth their time."""
        if self._resting > 0:
            self._resting -= 1
            return Plan(np.zeros(len(views), np.int64))
        return Plan(np.array([max(0, min(view.room, self.config.width - 1)) for view in views], np.int64))

    def grow(
        self, views: Sequence[RoundView], plan: Plan, drafts: Sequence[Draft | None]
    ) -> tuple[list[TokenTree], list[TokenTree]]:
        """All candidates, and the prefix of the batch's best-first order with the best expected rate."""
        self._grown.clear()
        self._drafted = any(draft is not None for draft in drafts)
        grown = [candidates(view, draft, self._look) for view, draft in zip(views, drafts, strict=True)]
        if all(one.tree.width == 1 for one in grown):
            trees = [one.tree for one in grown]
            return trees, trees
        kinds = [kinds_of(one, view.ngram.p_src) for one, view in zip(grown, views, strict=True)]
        everything = [self._priced(*each) for each in zip(views, grown, kinds, strict=True)]
        owners, rows, survival = best_of_batch(everything)
        allowed = np.ones(len(rows), np.bool_)
        for i in range(len(views)):
            allowed[np.flatnonzero(owners == i)[self.config.width - 1 :]] = False
        owners, rows, survival = owners[allowed], rows[allowed], survival[allowed]
        limit = len(rows) if plan.budget is None else min(len(rows), max(0, plan.budget - len(views)))
        extra = self._choose(len(views), survival[:limit])
        trees = []
        for i, (view, tree) in enumerate(zip(views, everything, strict=True)):
            chosen = np.concatenate([[0], np.sort(rows[:extra][owners[:extra] == i])])
            trees.append(tree.take(chosen))
            self._grown[view.request_id] = _Grown(tree, kinds[i], chosen)
        return everything, trees

    def learn(self, report: RoundReport) -> None:
        """Label every candidate of every kept row, and take in what the round cost."""
        for view, tree, outcome in zip(report.views, report.candidates, report.outcomes, strict=True):
            grown = self._grown.pop(view.request_id, None)
            if grown is not None and grown.candidates is tree:
                kept = grown.rows[outcome.path].tolist()
                self._label(view.request_id, grown, dict(zip(kept, outcome.wanted.tolist(), strict=True)))
        total_ms = report.draft_ms + report.verify_ms + report.other_ms
        if report.first or total_ms <= 0.0:
            return
        self._elapsed_ms += total_ms
        self._draft_ms[self._drafted].append(report.draft_ms)
        self.costs.learn(report.rows, report.verify_ms + report.other_ms)

    def facts(self, report: RoundReport) -> dict[str, Any]:
        """Nothing: see `Policy.facts`."""
        return {}

    def state(self) -> dict[str, Any]:
        """What outlives a request: the costs of row classes and the counts over all requests."""
        return {"costs": self.costs.state(), "counts": self.counts.state()}

    def load(self, state: dict[str, Any]) -> None:
        """See `Policy.load`."""
        self.costs, self.counts = RoundCosts(self.config.slope), AcceptCounts()  # empty, unless all of it is sound
        costs, counts = RoundCosts(self.config.slope), AcceptCounts()
        costs.load(field(state, "costs"))
        counts.load(field(state, "counts"))
        self.costs, self.counts = costs, counts

    def _choose(self, requests: int, survival: FloatArray) -> int:
        """How many of the candidates, given by falling survival, to verify beside the anchors of `requests`."""
        most = min(len(survival), max(0, self.costs.reach - requests))
        extras = [top - requests for top in LADDER if 0 < top - requests < most]
        offered = np.array(sorted({0, *extras, most}), np.int64)
        rows = requests + offered
        tokens = requests + np.concatenate([[0.0], np.cumsum(survival)])[offered]
        ms = self._before_ms(self._drafted) + self.costs.ms(rows)
        rate = tokens / ms
        best = int(np.argmax(rate))
        if rate[best] <= rate[0] * (1.0 if self._speculating else 1.0 + self.config.margin):
            best = 0
        self._speculating = best > 0
        self._look = min(MAX_DEPTH, 4 * max(1, int(offered[best])))  # further only as it proves worth it
        self._weigh_draft(float(rate[best]), requests)
        return int(offered[self._explore(best, rows, tokens, ms)])

    def _explore(self, best: int, rows: IntArray, tokens: FloatArray, ms: FloatArray) -> int:
        """The offer to run: `best`, or one whose price is in doubt, while what that may lose is small.

        A doubtful width is hoped to cost as little as the next narrower one (the bound of AdaSpark §3.2). Plain
        decoding, which everything is compared with, is measured first of all, and again whenever in doubt.
        """
        plain = int(rows[0])
        if not self.costs.believed(plain) or self.costs.shifted(plain):
            return 0
        best_rate = tokens[best] / ms[best]
        hoped = tokens / np.minimum(ms, np.concatenate([ms[:1], ms[:-1]]))
        hoped[0] = np.inf
        for i in np.argsort(-hoped, kind="stable").tolist():
            if hoped[i] <= best_rate * (1.0 + self.config.margin):
                break
            loss = max(0.0, float(ms[i] - tokens[i] / best_rate))
            doubtful = self.costs.doubtful(int(rows[i]))
            if doubtful and self._explored_ms + loss <= self.config.explore * self._elapsed_ms:
                self._explored_ms += loss
                return int(i)
        return best

    def _weigh_draft(self, rate: float, requests: int) -> None:
        """After a draft: rest from drafting, each time twice as long, if plain rounds without it would be faster."""
        if not self._drafted:
            return
        plain_ms = self._before_ms(False) + float(self.costs.ms(np.array([requests]))[0])
        pays = rate >= requests / plain_ms
        self._rest = 0 if pays else min(self.config.rest, max(4, 2 * self._rest))
        self._resting = self._rest

    def _before_ms(self, drafted: bool) -> float:
        """Time of a round before its verify."""
        recent = self._draft_ms[drafted]
        return median_low(recent) if recent else 0.0

    def _priced(self, view: RoundView, grown: Candidates, kinds: list[str]) -> TokenTree:
        tree = grown.tree
        if tree.width == 1:
            return tree
        q = self.counts.price(view.request_id, kinds, tree.q[1:].tolist())
        return replace(tree, q=share_out(tree.parents, np.concatenate([[1.0], q])))

    def _label(self, request_id: str, grown: _Grown, wanted: dict[int, int]) -> None:
        tree = grown.candidates
        for row, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
            if row and parent in wanted:
                self.counts.learn(request_id, grown.kinds[row - 1], token == wanted[parent])


def kinds_of(grown: Candidates, p_src: float) -> list[str]:
    """Per candidate, the anchor left out, the evidence it is counted under.

    A copy's by the length that has matched when its parent is accepted, so that the fourth token of a short copy and
    the first of a longer one count alike, and by the source's precision on this text, so that a text that repeats
    does not speak for one that does not.
    """
    tree = grown.tree
    precision = bisect_left((0.3, 0.6, 0.85), p_src)
    kinds = []
    columns = zip(tree.sources.tolist(), tree.ranks.tolist(), tree.q.tolist(), grown.evidence, strict=True)
    for source, rank, q, evidence in list(columns)[1:]:
        if source == Source.PICK:
            kinds.append(f"pick {int(8 * q)}{' agreed' if evidence else ''}")
        elif source == Source.SIBLING:
            kinds.append(f"sibling {int(-log2(max(q, 1e-6)))}{' agreed' if evidence else ''}")
        elif rank > 0 or evidence is None:
            kinds.append(f"other {precision}")
        elif evidence.kind is Kind.COPY:
            kinds.append(f"copy {bisect_left((4, 6, 8, 12, 16, 24, 32), evidence.length)} {precision}")
        else:
            kinds.append(f"follower {4 * evidence.times // (evidence.total + 1)} {min(evidence.times, 3)} {precision}")
    return kinds
