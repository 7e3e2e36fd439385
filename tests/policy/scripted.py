"""Decoding on a scripted clock: the target says the tokens of a script, and a function says how long a round takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from firesteel.ngram import NgramIndex
from firesteel.policy import Policy
from firesteel.rounds import BlockDraft, Draft, RoundReport, RoundView, VerifyOutcome
from firesteel.tree import Source, TokenTree

Clock = Callable[[int, int], float]  # (rows, number of the round) -> milliseconds of the verify
Attention = Callable[[int, float], float]  # (rows, mean context) -> milliseconds of the verify that grow with context
Drafter = Callable[[list[int], int, int], Draft | None]  # (script, position of the anchor, length) -> a block


@dataclass
class Script:
    """A request whose target says `text`, of which the first `prompt_len` tokens are given."""

    name: str
    text: list[int]
    prompt_len: int
    temperature: float = 0.0
    start: int = 0  # tokens of context before the script, which nothing is known of
    ngram: NgramIndex = field(init=False)
    at: int = field(init=False)  # position of the anchor

    def __post_init__(self) -> None:
        self.at = self.prompt_len - 1
        self.ngram = NgramIndex(self.text[: self.prompt_len])

    @property
    def left(self) -> int:
        return len(self.text) - 1 - self.at

    def view(self) -> RoundView:
        return RoundView(
            self.name, self.text[self.at], self.start + self.at, self.temperature, self.left - 1, self.ngram
        )

    def verify(self, tree: TokenTree) -> VerifyOutcome:
        """Follow the script down the tree, and commit."""
        path, wanted = [0], [self.text[self.at + 1]]
        while True:
            right = [row for row in tree.children(path[-1]) if tree.tokens[row] == wanted[-1]]
            if not right:
                break
            path.append(int(right[0]))
            wanted.append(self.text[self.at + len(path)])
        self.at += len(path)
        self.ngram.extend(wanted)
        return VerifyOutcome(np.array(path), wanted[-1], np.array(wanted))


@dataclass
class Trace:
    """What a run took."""

    ms: float = 0.0
    work_ms: float = 0.0  # the same without the machine's slowness
    widths: list[int] = field(default_factory=list)  # rows of each round, over the batch
    round_ms: list[float] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)  # whether a round drafted,
    trees: list[list[TokenTree]] = field(default_factory=list)  # and what it verified
    end_ms: dict[str, float] = field(default_factory=dict)  # when each request ended


def decode(
    policy: Policy,
    scripts: Sequence[Script],
    clock: Clock,
    *,
    drafter: Drafter | None = None,
    draft_ms: float = 0.0,
    other_ms: float = 0.0,
    record: Callable[[RoundReport], None] = lambda report: None,
    attention: Attention = lambda rows, context: 0.0,
    slowness: Callable[[float], float] = lambda now_ms: 1.0,
    slots: int = 64,
    budget: int | None = None,
) -> Trace:
    """Decode all scripts to their ends, the first `slots` that have not ended as one batch.

    `record` is called as the engine's. `slowness` is a factor on everything by the time since the beginning. With a
    budget, every plan is given it.
    """
    trace, seen = Trace(), set[str]()
    while running := [script for script in scripts if script.left > 0][:slots]:
        views = [script.view() for script in running]
        plan = policy.plan(views)
        if budget is not None:
            plan = replace(plan, budget=budget)
        drafts: list[Draft | None] = [None] * len(running)
        if drafter is not None:
            drafts = [
                drafter(script.text, script.at, int(length)) if length > 0 else None
                for script, length in zip(running, plan.lengths, strict=True)
            ]
        candidates, trees = policy.grow(views, plan, drafts)
        for view, tree in zip(views, trees, strict=True):
            assert tree.tokens[0] == view.anchor
            assert int(tree.depths.max()) <= max(view.room, 0)
        rows = sum(tree.width for tree in trees)
        assert budget is None or rows <= max(budget, len(trees))
        context = sum(view.context * tree.width for view, tree in zip(views, trees, strict=True)) / rows
        outcomes = [script.verify(tree) for script, tree in zip(running, trees, strict=True)]
        slow = slowness(trace.ms)
        verify_ms = slow * (clock(rows, len(trace.widths)) + attention(rows, context))
        drafting = slow * draft_ms if any(draft is not None for draft in drafts) else 0.0
        first = not {view.request_id for view in views} <= seen
        seen |= {view.request_id for view in views}
        report = RoundReport(views, candidates, trees, outcomes, drafting, verify_ms, slow * other_ms, rows, first)
        record(report)
        policy.learn(report)
        trace.widths.append(rows)
        trace.trees.append(trees)
        trace.drafted.append(any(draft is not None for draft in drafts))
        trace.round_ms.append(drafting + verify_ms + slow * other_ms)
        trace.ms += trace.round_ms[-1]
        trace.work_ms += trace.round_ms[-1] / slow
        trace.end_ms |= {script.name: trace.ms for script in running if script.left == 0}
    return trace


def block_of_script(text: list[int], at: int, length: int) -> BlockDraft:
    """A drafter that is always right, with three siblings per position that never are."""
    tokens = [[text[at + 1 + i], -1, -2, -3] for i in range(min(length, 7, len(text) - 1 - at))]
    return BlockDraft(text[at], np.array(tokens), np.tile([0.7, 0.1, 0.1, 0.05], (len(tokens), 1)))


def block_of_errors(text: list[int], at: int, length: int) -> BlockDraft:
    """A drafter that is sure of itself and never right."""
    tokens = [[-4, -1, -2, -3] for _ in range(min(length, 7))]
    return BlockDraft(text[at], np.array(tokens), np.tile([0.7, 0.1, 0.1, 0.05], (len(tokens), 1)))


@dataclass
class Guesser:
    """A drafter whose picks are right with a known chance, and which says so or something else.

    Drafts differ: in a good one every pick is likelier than in a bad one. Their chances are spread evenly over whatever
    rounds there are, so that policies that take other steps through a text meet the same luck.

    Fields:
        right: mean chance of a pick, if those before it are right.
        spread: how far a draft's chance may be from it.
        sibling: chance that one of three siblings is right where the pick is not: the first of two, the others of one.
        says: what it says of a pick, by its chance and position from 0; the truth by default.
        truth: the chance of a pick, by its draft's chance and position from 0.
        positions: of a block.
    """

    right: float = 0.75
    spread: float = 0.2
    sibling: float = 0.4
    says: Callable[[float, int], float] = lambda chance, position: chance
    truth: Callable[[float, int], float] = lambda chance, position: chance
    positions: int = 11
    chances: list[float] = field(default_factory=list)  # of the drafts so far

    SHARES: ClassVar = (0.5, 0.25, 0.25)  # of siblings

    def __call__(self, text: list[int], at: int, length: int) -> BlockDraft:
        number, count = len(self.chances), min(length, self.positions, len(text) - 1 - at)
        dice, phase = random.Random(number), (number * 0.6180339887) % 1.0
        self.chances.append(chance := self.right + self.spread * (2.0 * phase - 1.0))
        tokens, probs, confidence = [], np.zeros((count, 4)), np.zeros(count)
        for i in range(count):
            row, right, said = [-1, -2, -3, -4], self.truth(chance, i), self.says(chance, i)
            if dice.random() < right:
                row[0] = text[at + 1 + i]
            elif dice.random() < self.sibling:
                row[dice.choice((1, 1, 2, 3))] = text[at + 1 + i]
            tokens.append(row)
            probs[i], confidence[i] = [said, *(self.sibling * (1.0 - said) * share for share in self.SHARES)], said
        return BlockDraft(text[at], np.array(tokens, np.int64).reshape(count, 4), probs, confidence)

    def earned(self, trace: Trace) -> float:
        """Tokens that the rounds of a run of one request were worth, by what is true of its drafts and not by luck."""
        total, chances = 0.0, iter(self.chances)
        for drafted, (tree,) in zip(trace.drafted, trace.trees, strict=True):
            total += 1.0 + (self._worth(tree, next(chances)) if drafted else 0.0)
        return total

    def _worth(self, tree: TokenTree, chance: float) -> float:
        """Expected accepted rows of a tree without n-gram rows."""
        worth, picks = 0.0, [self.truth(chance, i) for i in range(self.positions)]
        above = np.cumprod([1.0, *picks])  # what is true of all picks before a depth
        for source, rank, depth in zip(tree.sources.tolist(), tree.ranks.tolist(), tree.depths.tolist(), strict=True):
            if source == Source.PICK:
                worth += above[depth]
            elif source == Source.SIBLING:
                worth += above[depth - 1] * (1.0 - picks[depth - 1]) * self.sibling * self.SHARES[rank]
        return worth


class Swings:
    """A machine whose speed alternates between two clocks, by time and not by round."""

    def __init__(self, one: Clock, other: Clock, period_ms: float) -> None:
        self.clocks, self.period_ms, self.now_ms = (one, other), period_ms, 0.0

    def __call__(self, rows: int, number: int) -> float:
        ms = self.clocks[int(self.now_ms / self.period_ms) % 2](rows, number)
        self.now_ms += ms
        return ms
