"""Decoding on a scripted clock: the target says the tokens of a script, and a function says how long a round takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from firesteel.ngram import NgramIndex
from firesteel.policy import Policy
from firesteel.rounds import BlockDraft, Draft, RoundReport, RoundView, VerifyOutcome
from firesteel.tree import TokenTree

Clock = Callable[[int, int], float]  # (rows, number of the round) -> milliseconds of the verify
Drafter = Callable[[list[int], int, int], Draft | None]  # (script, position of the anchor, length) -> a block


@dataclass
class Script:
    """A request whose target says `text`, of which the first `prompt_len` tokens are given."""

    name: str
    text: list[int]
    prompt_len: int
    ngram: NgramIndex = field(init=False)
    at: int = field(init=False)  # position of the anchor

    def __post_init__(self) -> None:
        self.at = self.prompt_len - 1
        self.ngram = NgramIndex(self.text[: self.prompt_len])

    @property
    def left(self) -> int:
        return len(self.text) - 1 - self.at

    def view(self) -> RoundView:
        return RoundView(self.name, self.text[self.at], self.at, 0.0, self.left - 1, self.ngram)

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
    widths: list[int] = field(default_factory=list)  # rows of each round, over the batch
    round_ms: list[float] = field(default_factory=list)
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
) -> Trace:
    """Decode all scripts to their ends as one batch; requests that end leave it. `record` is called as the engine's."""
    trace, seen = Trace(), set[str]()
    while running := [script for script in scripts if script.left > 0]:
        views = [script.view() for script in running]
        plan = policy.plan(views)
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
        outcomes = [script.verify(tree) for script, tree in zip(running, trees, strict=True)]
        verify_ms = clock(rows, len(trace.widths))
        drafting = draft_ms if any(draft is not None for draft in drafts) else 0.0
        first = not {view.request_id for view in views} <= seen
        seen |= {view.request_id for view in views}
        report = RoundReport(views, candidates, trees, outcomes, drafting, verify_ms, other_ms, rows, first)
        record(report)
        policy.learn(report)
        trace.widths.append(rows)
        trace.round_ms.append(drafting + verify_ms + other_ms)
        trace.ms += trace.round_ms[-1]
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
