"""AdaSpark (Algorithm 1): which rows, and how many, by costs and acceptance that are learned while serving.

Comments name the algorithm's lines. Line 3 is the engine's, which drafts before `grow`; lines 13, 14 and 18 too.

For a batch the requests' candidates compete in one best-first order for the rows of one verify: a row is worth the same
whichever request it belongs to, and its price is the verify's, a function of all rows and of the mean context. With one
request all of this is the paper's rule. At T > 0 trees stay FIXED and `match` verifies them: the candidates are looked
up and not drawn, and what is learned of them is the target's own choice.

The paper always drafts. Here one row is a width too, and `Resting` leaves the draft out where it does not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any, Final

import numpy as np

from firesteel.accept.multinomial import Multinomial
from firesteel.candidates import Candidates, candidates
from firesteel.cost.base import RoundCost, mean_context
from firesteel.cost.online import OnlineCost
from firesteel.fit.stored import field
from firesteel.ngram import MAX_DEPTH
from firesteel.policy.base import best_of_batch
from firesteel.policy.chooser import Chooser, Growth
from firesteel.policy.config import AdaSparkConfig
from firesteel.policy.facts import labelled, widths
from firesteel.policy.measuring import Measuring
from firesteel.policy.resting import Earned, Resting
from firesteel.rounds import Draft, Plan, RoundReport, RoundView
from firesteel.tree import BoolArray, FloatArray, IntArray, Source, TokenTree

NGRAM: Final = int(Source.NGRAM)  # an enum's comparisons take time


@dataclass(frozen=True)
class _Width:
    """How many rows a round verifies, and why.

    Fields:
        rows: of the whole batch.
        tokens: that they are expected to commit.
        measured: whether the cost model asked for them.
        narrowest: rows of the narrowest offered width; 0 where none was.
        plain_ms: what the verify of that width costs: the least that a round without candidates may take.
    """

    rows: int
    tokens: float
    measured: bool = False
    narrowest: int = 0
    plain_ms: float = np.inf


@dataclass(frozen=True)
class _Round:
    """What `learn` needs of the round in flight.

    Fields:
        grown: candidates of each request.
        placed: rows of them that are verified, per request.
        owners, rows: of the verified prefix, best first over the batch; without what exploration put or gave up.
        growth: cut to these.
        offered: all that it was cut from.
        held: the incumbent's rows before the choice; None before there was one.
        draft_rows: positions drafted.
        width: the rows verified.
    """

    grown: list[Candidates]
    placed: list[IntArray]
    owners: IntArray
    rows: IntArray
    growth: Growth
    offered: Growth
    held: int | None
    draft_rows: int
    width: _Width


class AdaSpark:
    """The policy `adaspark`."""

    name: Final = "adaspark"

    def __init__(self, config: AdaSparkConfig | None = None) -> None:
        self.config = config or AdaSparkConfig()
        self._start()

    def _start(self) -> None:
        """As new, nothing learned."""
        self.cost = OnlineCost(self.config.cost)
        self.acceptance = Multinomial(self.config.acceptance)
        self.chooser = Chooser(self.config)
        self.resting = Resting(self.config)
        self.measuring = Measuring(self.config.measuring_share, self.config.row_slope)
        self._round: _Round | None = None
        self._look = MAX_DEPTH  # tokens of an n-gram chain that are worth the host's time
        self._idle_ms: list[float] = []  # the fixed cost of the newest rounds without a draft
        self._known: dict[str, int] = {}  # requests of the last round, and how many rounds they had before it
        self._since_refit = 0
        self._plain_rounds = 0  # since candidates were last verified

    def plan(self, views: Sequence[RoundView]) -> Plan:
        """Draft whole blocks, or nothing while drafts have not been worth their time."""
        ids = {view.request_id for view in views}
        if ids - self._known.keys():
            self.resting.new_request()
        if (ended := self._known.keys() - ids) and self._since_refit >= self.config.refit_every:
            self.cost.refit()
            self._since_refit = 0
        for request_id in ended:
            self.acceptance.forget(request_id)
        self._known = {request_id: self._known.get(request_id, -1) + 1 for request_id in ids}
        if not (self.config.pinned or self.resting.drafts()):
            return Plan(np.zeros(len(views), np.int64))
        return Plan(np.array([max(0, min(view.room, self.config.width - 1)) for view in views], np.int64))

    def grow(
        self, views: Sequence[RoundView], plan: Plan, drafts: Sequence[Draft | None]
    ) -> tuple[list[TokenTree], list[TokenTree]]:
        """All candidates, and the prefix of the batch's best-first order that is worth the most."""
        draft_rows = sum(len(draft.top_tokens) for draft in drafts if draft is not None)
        grown = [
            candidates(view, draft, self._look if self.config.text else 0)
            for view, draft in zip(views, drafts, strict=True)
        ]  # line 4
        if all(one.tree.width == 1 for one in grown):
            return self._plain(grown)
        everything = [self._priced(one) for one in grown]  # line 5
        owners, rows, survival = self._order(everything)  # line 6
        if plan.budget is not None:
            most = max(0, plan.budget - len(views))
            owners, rows, survival = owners[:most], rows[:most], survival[:most]
        of_text = _gathered([tree.sources == NGRAM for tree in everything], owners, rows)
        growth = Growth(len(views), _mean([view.context for view in views]), survival, of_text)
        held = self.chooser.incumbent.get(draft_rows > 0)
        width = self._width(growth, draft_rows)  # lines 7 to 10
        extra = width.rows - len(views)
        placed, trees, given_up = [], [], []
        for i, (one, tree) in enumerate(zip(grown, everything, strict=True)):
            mine = owners == i
            order = np.concatenate([[0], rows[mine]])
            count = 1 + int(np.count_nonzero(mine[:extra]))
            chosen = self.acceptance.explore(one, order, count)  # line 12
            if chosen[-1] != (last := order[count - 1]):
                given_up.append((i, last))
            placed.append(np.sort(chosen))  # line 11; parents come before children
            trees.append(tree.take(placed[-1]))
        self._look = min(MAX_DEPTH, 4 * max(1, extra))  # further only as it proves worth it
        owners, rows, survival, of_text = owners[:extra], rows[:extra], survival[:extra], of_text[:extra]
        for i, row in given_up:
            shown = (owners != i) | (rows != row)
            owners, rows, survival, of_text = owners[shown], rows[shown], survival[shown], of_text[shown]
        cut = Growth(growth.requests, growth.context, survival, of_text)
        self._round = _Round(grown, placed, owners, rows, cut, growth, held, draft_rows, width)
        return everything, trees

    def _plain(self, grown: list[Candidates]) -> tuple[list[TokenTree], list[TokenTree]]:
        """Nothing is proposed: the anchors alone. Most rounds of a rest, so nothing is computed."""
        count, none = len(grown), np.zeros(0, np.int64)
        growth = Growth(count, _mean([one.view.context for one in grown]), np.zeros(0), np.zeros(0, np.bool_))
        placed = [np.zeros(1, np.int64)] * count
        self._round = _Round(grown, placed, none, none, growth, growth, None, 0, _Width(count, float(count)))
        trees = [one.tree for one in grown]
        return trees, trees

    def learn(self, report: RoundReport) -> None:
        """Lines 15 to 17."""
        round_, self._round = self._round, None
        if round_ is None:
            return
        self._since_refit += 1
        self._label(round_, report)
        total_ms = report.draft_ms + report.verify_ms + report.other_ms
        if report.first or total_ms <= 0.0:
            return
        fixed_ms, drafted = report.draft_ms + report.other_ms, round_.draft_rows > 0
        if not drafted:
            self._idle_ms = [*self._idle_ms[-7:], fixed_ms]
        self._plain_rounds = 0 if drafted or len(round_.growth.survival) else self._plain_rounds + 1
        if self._plain_rounds < self.config.plain_learned or self._plain_rounds % self.config.plain_every == 0:
            context = mean_context([view.context for view in report.views], [tree.width for tree in report.trees])
            took = RoundCost(report.rows, context, report.verify_ms, fixed_ms, round_.draft_rows, report.first)
            self.cost.learn(took)
        self.measuring.elapsed_ms += total_ms
        if round_.width.measured:
            return  # nobody chose its width
        committed = sum(len(outcome.path) for outcome in report.outcomes)
        self.chooser.rates.learn(round_.growth.band, committed, total_ms)  # line 16
        plain = total_ms * len(report.views) / (self._idle() + round_.width.plain_ms)
        accepted = committed - len(report.views)
        self.resting.learn(drafted, Earned(round_.width.tokens, committed, accepted, total_ms, plain))

    def facts(self, report: RoundReport) -> dict[str, Any]:
        """See `Policy.facts`, and `policy.facts` for what is in them."""
        if (round_ := self._round) is None:
            return {}
        reason = "pinned" if self.config.pinned else "measured" if round_.width.measured else "chosen"
        facts = {
            "reason": reason if len(round_.offered.survival) else "alone",
            "drafted": round_.draft_rows,
            "rests": self.resting.facts(),
            "guard": self.acceptance.guard.facts(),
            "requests": labelled(self.acceptance, round_.grown, round_.placed, report.outcomes),
        }
        fixed_ms = self._fixed_ms(round_.draft_rows)
        return facts | widths(self.cost, self.chooser, round_.offered, round_.held, fixed_ms, report.rows)

    def state(self) -> dict[str, Any]:
        """What outlives a request, as JSON values."""
        return {"cost": self.cost.state(), "acceptance": self.acceptance.state(), "chooser": self.chooser.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned. Raises DamagedState, and is empty then, if it is something else."""
        self._start()
        loaded = AdaSpark(self.config)  # so that all stays empty unless all is sound
        loaded.cost.load(field(state, "cost"))
        loaded.acceptance.load(field(state, "acceptance"))
        loaded.chooser.load(field(state, "chooser"))
        self.cost, self.acceptance, self.chooser = loaded.cost, loaded.acceptance, loaded.chooser

    def _idle(self) -> float:
        """Fixed cost of a round without a draft; 0 before there was one."""
        return median_low(self._idle_ms or [0.0])

    def _priced(self, grown: Candidates) -> TokenTree:
        if grown.tree.width == 1:
            return grown.tree
        price = self.acceptance.price if self.config.fitted else self.acceptance.by_head
        return replace(grown.tree, q=price(grown))

    def _order(self, trees: list[TokenTree]) -> tuple[IntArray, IntArray, FloatArray]:
        """The batch's candidates, best first, of each request no more than a tree may have."""
        owners, rows, survival = best_of_batch(trees)
        if len(trees) == 1:
            most = self.config.width - 1
            return owners[:most], rows[:most], survival[:most]
        allowed = np.ones(len(rows), np.bool_)
        for i in range(len(trees)):
            allowed[np.flatnonzero(owners == i)[self.config.width - 1 :]] = False
        return owners[allowed], rows[allowed], survival[allowed]

    def _width(self, growth: Growth, draft_rows: int) -> _Width:
        """How many rows to verify."""
        requests, available, expected = growth.requests, growth.available, self.chooser.expected(growth)
        if self.config.pinned:
            pinned = min(self.config.width * requests, available)
            return _Width(pinned, float(expected[pinned - requests]))
        offer = self.cost.offer(requests, available)
        rows = offer.widths
        if len(rows) == 0:  # the narrowest width first of all: plain decoding, where the ladder has it
            first = offer.measure or requests
            return _Width(first, float(expected[first - requests]), measured=True)
        if rows[-1] > available:
            rows = np.append(rows[: rows.searchsorted(available)], available)
        fixed_ms = self._fixed_ms(draft_rows)
        verify_ms = self.cost.verify_ms(rows, growth.context)
        ms, narrowest, plain_ms = fixed_ms + verify_ms, int(rows[0]), float(verify_ms[0])
        tokens = expected[rows - requests]
        if (measure := offer.measure) is not None:  # lines 7 and 8
            rate, earns = float((tokens / ms).max()), float(expected[measure - requests])
            if expected[-1] / ms[0] > rate * (1.0 + self.config.ratio_margin):
                guess_ms = self.measuring.guess_ms(measure, rows, ms)
                may_take_ms = guess_ms if offer.seen_ms is None else fixed_ms + offer.seen_ms
                if self.measuring.take(max(0.0, may_take_ms - earns / rate)):
                    return _Width(measure, earns, True, narrowest, plain_ms)
        choice = self.chooser.choose(growth.band, rows, tokens, ms, drafted=draft_rows > 0)  # line 10
        width = int(rows[choice.best])
        gaps = self.cost.held(int(offer.widths[offer.widths.searchsorted(width)]), growth.context)
        if len(gaps.most_rows):  # line 15: split a class if a width inside could win
            could = self.chooser.could_win(choice, expected[gaps.most_rows - requests], fixed_ms + gaps.least_ms)
            self.cost.split(gaps, could)
        return _Width(width, float(tokens[choice.best]), False, narrowest, plain_ms)

    def _fixed_ms(self, draft_rows: int) -> float:
        """What a round takes beside its verify."""
        return self.cost.draft_ms(draft_rows) if draft_rows else self._idle()

    def _label(self, round_: _Round, report: RoundReport) -> None:
        """Line 17, and the gains of line 16."""
        accepted = []
        for grown, placed, outcome in zip(round_.grown, round_.placed, report.outcomes, strict=True):
            kept = placed[outcome.path]
            hit = np.zeros(grown.tree.width, np.bool_)
            hit[kept] = True
            accepted.append(hit)
            rounds = self._known[grown.view.request_id]
            if grown.tree.width > 1 and (
                rounds < self.config.request_learned or rounds % self.config.request_every == 0
            ):
                self.acceptance.learn(grown, kept, outcome.wanted)
        if len(round_.rows):
            hits = _gathered(accepted, round_.owners, round_.rows)
            self.chooser.learn_gains(round_.growth, hits, round_.width.narrowest)


def _gathered(flags: Sequence[BoolArray], owners: IntArray, rows: IntArray) -> BoolArray:
    """`bool[n]` flags[owner][row] for every pair."""
    if len(flags) == 1:
        return flags[0][rows]
    starts = np.cumsum([0, *(len(one) for one in flags[:-1])])
    gathered: BoolArray = np.concatenate(flags)[starts[owners] + rows]
    return gathered


def _mean(contexts: list[int]) -> float:
    return sum(contexts) / len(contexts)
