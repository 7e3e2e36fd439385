"""Whether prices were right: Figure 10, Table 2, Figure 4 (AdaSpark §3.3, §4.7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from firesteel.explain.parts import NONE, Part, Table, needs_adaspark, number, share
from firesteel.explain.svg import Plot, Series
from firesteel.explain.trace import Facts, Trace

BINS = 10
SPANS = 20  # of rounds, where a trace has too few requests for Figure 4
ENOUGH_REQUESTS = 3


def figure_10(trace: Trace) -> Part:
    """Accepted rows of a tree against what was expected of it, in bins of as many trees each."""
    title = "Figure 10: accepted against expected"
    points: dict[str, list[tuple[float, int]]] = {}
    for one in trace.rounds:
        if one.facts is not None and one.facts.reason != "chosen":
            continue
        name = "own prices" if one.facts is None else "fitted model" if one.facts.trusts_fit else "head-based estimate"
        points.setdefault(name, []).extend((tree.expected, tree.accepted) for tree in one.requests if tree.width > 1)
    points = {name: some for name, some in points.items() if some}
    if not points:
        return Part(title, ["No tree of this trace had a row beside its anchor that was chosen by its price."])
    series, rows, words = [], [], []
    for colour, (name, some) in enumerate(sorted(points.items())):
        pairs = np.array(sorted(some), np.float64)
        means = [bin_.mean(0).tolist() for bin_ in np.array_split(pairs, min(BINS, len(pairs)))]
        sizes = [len(bin_) for bin_ in np.array_split(pairs, min(BINS, len(pairs)))]
        series.append(Series("dots", [s for s, _ in means], [hit for _, hit in means], name, colour))
        rows += [
            [name, str(i), str(size), number(s), number(hit)]
            for i, (size, (s, hit)) in enumerate(zip(sizes, means, strict=True), start=1)
        ]
        expected, accepted = pairs.sum(0).tolist()
        ratio = number(accepted / expected, 3) if expected > 0.0 else NONE
        words.append(f"Accepted over expected, {name}: {ratio} ({len(pairs)} trees).")
    most = max(max(one.x) for one in series)
    series.append(Series("dashed", [0.0, most], [0.0, most], "as expected", 5))
    words = [
        "Each dot is a tenth of the trees, by how many rows they were expected to have accepted. Above the dashed line "
        "more was accepted than expected. Trees of one row, and rounds that measured a width, are left out.",
        *words,
    ]
    if not trace.facts:
        words.append("The policy's expectation is the drafter's and the text's own probabilities, fitted to nothing.")
    plot = Plot(title, "expected accepted rows S", "accepted rows", series)
    return Part(title, words, plot=plot, table=Table(["priced by", "bin", "trees", "expected", "accepted"], rows))


@dataclass(frozen=True)
class _Loss:
    """Labelled rows and summed losses of some rounds of a request, and by which price they were chosen."""

    name: str
    nodes: int
    fitted: float
    head: float
    trees: int
    by_fit: int

    @property
    def change(self) -> float | None:
        """Of the fitted model's loss against the head-based one."""
        return self.fitted / self.head - 1.0 if self.head > 0.0 else None


def table_2(trace: Trace) -> Part:
    """Log loss per labelled row of both estimates."""
    title = "Table 2: prediction of acceptance"
    if not trace.facts:
        return needs_adaspark(title, "the log losses of its fitted model and of the head-based estimate")
    losses = _by_request(trace)
    groups = [("all", losses)]
    if len(losses) > 1:
        groups = [("after the first", losses[1:]), ("the first", losses[:1]), *groups]
    rows = [[name, str(len(some)), *_cells(_sum(name, some)), _won(some), _priced(some)] for name, some in groups]
    words = [
        "How surprised each estimate was by the target's choices (log loss per labelled candidate, lower is better), "
        "before it learned from them: the drafter's own confidence with an offset per request, and the model that "
        "adaspark fits while it decodes. Priced is the share of trees whose rows were chosen by the fitted model.",
        "The paper leaves out replies that ran into their limit or looped; a trace does not know of them.",
    ]
    head = ["requests", "count", "labelled rows", "head-based", "fitted", "change", "requests won", "priced by fit"]
    return Part(title, words, table=Table(head, rows))


def figure_4(trace: Trace) -> Part:
    """By how much the fitted model's loss is lower, request by request."""
    title = "Figure 4: the fitted model's advantage"
    if not trace.facts:
        return needs_adaspark(title, "the log losses of its fitted model and of the head-based estimate")
    losses, unit = _by_request(trace), "request"
    words = [
        "How much lower the fitted model's log loss is than the head-based estimate's, in the order of serving. Below "
        "zero the fitted model was the worse one."
    ]
    if len(losses) < ENOUGH_REQUESTS:
        losses, unit = _by_span(trace.facts), "rounds"
        words.append(f"This trace has fewer than {ENOUGH_REQUESTS} requests, so a bar is a span of rounds.")
    losses = [one for one in losses if one.change is not None]
    advantage = [-100.0 * (one.change or 0.0) for one in losses]
    names = [one.name for one in losses] if unit == "rounds" else [str(i + 1) for i in range(len(losses))]
    plot = Plot(title, unit, "% lower log loss", [Series("bars", list(range(len(losses))), advantage)], names=names)
    rows = [[one.name, *_cells(one)] for one in losses]
    table = Table([unit, "labelled rows", "head-based", "fitted", "change"], rows)
    return Part(title, words, plot=plot if losses else None, table=table)


def _by_request(trace: Trace) -> list[_Loss]:
    """In the order of their first rounds."""
    parts: dict[str, list[_Loss]] = {}
    for one, facts in trace.facts:
        for share_, loss in zip(one.requests, facts.loss, strict=True):
            parts.setdefault(share_.id, []).append(_one(share_.id, facts, [loss]))
    return [_sum(name, some) for name, some in parts.items()]


def _by_span(rounds: Sequence[tuple[object, Facts]]) -> list[_Loss]:
    spans = [span.tolist() for span in np.array_split(np.arange(len(rounds)), min(SPANS, len(rounds)))]
    return [
        _sum(f"{span[0] + 1}-{span[-1] + 1}", [_one("", rounds[i][1], rounds[i][1].loss) for i in span])
        for span in spans
    ]


def _one(name: str, facts: Facts, losses: Iterable[tuple[int, float, float]]) -> _Loss:
    nodes, fitted, head, trees = 0, 0.0, 0.0, 0
    for count, by_fit, by_head in losses:
        nodes, fitted, head, trees = nodes + count, fitted + by_fit, head + by_head, trees + (count > 0)
    return _Loss(name, nodes, fitted, head, trees, trees if facts.trusts_fit else 0)


def _sum(name: str, some: Sequence[_Loss]) -> _Loss:
    nodes, trees, by_fit = (sum(getattr(one, field) for one in some) for field in ("nodes", "trees", "by_fit"))
    return _Loss(name, nodes, sum(one.fitted for one in some), sum(one.head for one in some), trees, by_fit)


def _cells(one: _Loss) -> list[str]:
    if not one.nodes:
        return ["0", NONE, NONE, NONE]
    change = NONE if one.change is None else f"{one.change:+.1%}"
    return [str(one.nodes), number(one.head / one.nodes, 4), number(one.fitted / one.nodes, 4), change]


def _won(some: Sequence[_Loss]) -> str:
    judged = [one for one in some if one.nodes]
    return f"{sum(one.fitted < one.head for one in judged)}/{len(judged)}"


def _priced(some: Sequence[_Loss]) -> str:
    return share(sum(one.by_fit for one in some), sum(one.trees for one in some))
