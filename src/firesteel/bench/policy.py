"""`bench policy`: host time of deciding. A round's plan, grow and learn without a model, on prepared rounds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from firesteel.cost.base import RoundCost
from firesteel.cost.config import CostConfig
from firesteel.errors import InvalidParameter
from firesteel.ngram import NgramIndex
from firesteel.policy import Policy, make
from firesteel.policy.adaspark import AdaSpark
from firesteel.policy.config import AdaSparkConfig
from firesteel.rounds import BlockDraft, Draft, RoundReport, RoundView, VerifyOutcome
from firesteel.tree import TokenTree

MOST_WIDTHS = (*range(1, 21), 24, 32, 48, 64)  # as many as are ever learned
CONTEXT = 512  # tokens of each request's text
VOCABULARY = 50_000
DRAFT_MS, OTHER_MS = 2.0, 0.5


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a round has to decide about.

    Fields:
        name: for the table.
        requests: in the batch.
        positions, siblings: of a drafted block, the pick counted; 0 positions draft nothing.
        repeats: whether the requests' texts repeat, so that n-gram chains are proposed.
        widths: of the cost model's starting ladder.
    """

    name: str
    requests: int = 1
    positions: int = 0
    siblings: int = 8
    repeats: bool = True
    widths: tuple[int, ...] = CostConfig.ladder

    def policy(self, name: str) -> Policy:
        """A policy of this name; AdaSpark with all widths priced, which it would take its time over."""
        if name != AdaSpark.name:
            return make(name)
        policy = AdaSpark(AdaSparkConfig(cost=CostConfig(ladder=self.widths)))
        for width in self.widths * policy.config.cost.measurements:
            policy.cost.learn(RoundCost(width, CONTEXT, verify_ms(width), DRAFT_MS + OTHER_MS, 0, first=False))
        return policy


CASES = (
    Case(name="nothing proposed", repeats=False),
    Case(name="n-gram chain"),
    Case(name="draft of 4 x 8, n-gram chains", positions=4),
    Case(name="8 requests, drafts of 4 x 8, n-gram chains", requests=8, positions=4),
    Case(name="24 widths, draft of 15 x 8", positions=15, repeats=False, widths=MOST_WIDTHS),
)


@dataclass
class Rounds:
    """Rounds of one case, timed.

    The texts stay as they are, so that every round decides about the same; a candidate is right by a coin that falls
    its way as often as the drafter says, or one time in two for the text's.
    """

    case: Case
    policy: Policy
    ms: dict[str, list[float]] = field(default_factory=lambda: {"plan": [], "grow": [], "learn": []})

    def __post_init__(self) -> None:
        self.coin = random.Random(0)
        self.views = [self._view(i) for i in range(self.case.requests)]
        self.drafts: list[Draft | None] = [self._draft(view) for view in self.views]
        self.count = self.candidates = self.rows = 0

    def run(self) -> None:
        """One round."""
        begun = time.perf_counter()
        plan = self.policy.plan(self.views)
        planned = time.perf_counter()
        candidates, trees = self.policy.grow(self.views, plan, self.drafts)
        grown = time.perf_counter()
        outcomes = [self._outcome(tree) for tree in trees]
        rows = sum(tree.width for tree in trees)
        drafted = any(draft is not None for draft in self.drafts)
        draft_ms, first = DRAFT_MS if drafted else 0.0, self.count == 0
        report = RoundReport(self.views, candidates, trees, outcomes, draft_ms, verify_ms(rows), OTHER_MS, rows, first)
        reported = time.perf_counter()
        self.policy.learn(report)
        learned = time.perf_counter()
        self.count += 1
        self.candidates, self.rows = sum(tree.width - 1 for tree in candidates), rows
        for verb, seconds in (("plan", planned - begun), ("grow", grown - planned), ("learn", learned - reported)):
            self.ms[verb].append(1e3 * seconds)

    def record(self) -> dict[str, Any]:
        """What the rounds took (medians), and what the last of them was about."""
        times = {f"{verb}_ms": median(ms) for verb, ms in self.ms.items()}
        return {
            "case": self.case.name,
            "requests": self.case.requests,
            "candidates": self.candidates,
            "widths": len(self.case.widths),
            "rows": self.rows,
            **times,
            "total_ms": median(map(sum, zip(*self.ms.values(), strict=True))),
        }

    def _view(self, i: int) -> RoundView:
        tokens = [self.coin.randrange(VOCABULARY) for _ in range(CONTEXT)]
        if self.case.repeats:
            tokens[-40:] = tokens[100:140]
        return RoundView(f"request {i}", tokens[-1], CONTEXT - 1, 0.0, 256, NgramIndex(tokens))

    def _draft(self, view: RoundView) -> Draft | None:
        positions, width = self.case.positions, self.case.siblings
        if positions == 0:
            return None
        tokens = np.array([[self.coin.randrange(VOCABULARY) for _ in range(width)] for _ in range(positions)])
        probs = np.tile(0.6 * 0.5 ** np.arange(width), (positions, 1))
        return BlockDraft(view.anchor, tokens, probs, np.full(positions, 0.7))

    def _outcome(self, tree: TokenTree) -> VerifyOutcome:
        """Walk down from the anchor: at each row one child at most is right."""
        path, wanted = [0], [-1]
        while wanted[-1] == -1:
            luck = self.coin.random()
            for child in tree.children(path[-1]).tolist():
                luck -= min(float(tree.q[child]), 0.5)
                if luck < 0.0:
                    wanted[-1] = int(tree.tokens[child])
                    path.append(child)
                    wanted.append(-1)
                    break
            else:
                break
        return VerifyOutcome(np.array(path), -1, np.array(wanted))


def verify_ms(rows: int) -> float:
    """What a verify is said to take: rows are cheap enough to be worth choosing between."""
    return 20.0 * (1.0 + 0.05 * rows)


def measure(name: str, rounds: int, on_case: Callable[[], None], cases: Sequence[Case] = CASES) -> list[dict[str, Any]]:
    """Records `{case, requests, candidates, widths, rows, plan_ms, grow_ms, learn_ms, total_ms}`, medians of rounds.

    Half as many rounds again run before those that count, so that prices are known and nothing is measured any more.

    Raises:
        InvalidParameter: an unknown policy, or no rounds.
    """
    if rounds < 1:
        raise InvalidParameter(f"rounds must be at least 1, got {rounds}")
    records = []
    for case in cases:
        runs = Rounds(case, case.policy(name))
        for _ in range(rounds // 2):
            runs.run()
        for ms in runs.ms.values():
            ms.clear()
        for _ in range(rounds):
            runs.run()
        records.append(runs.record())
        on_case()
    return records
