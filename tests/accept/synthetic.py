"""Rounds made up: candidates with every kind of evidence, and targets that answer as a given model says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from firesteel.accept.base import AcceptanceModel
from firesteel.accept.multinomial import Multinomial
from firesteel.candidates import Candidates
from firesteel.ngram import Kind, NgramIndex, Proposal
from firesteel.rounds import RoundView
from firesteel.tree import FloatArray, IntArray, Source, TokenTree

NOTHING = 10**6  # a token that nobody proposes


def copy(length: int = 8, above: int = 0) -> Proposal:
    return Proposal(0, Kind.COPY, length, 1, 1, above)


def follower(times: int, above: int = 0) -> Proposal:
    return Proposal(0, Kind.FOLLOWER, 3, times, 9, above)


def view_of(request_id: str = "r", context: int = 0, temperature: float = 0.0) -> RoundView:
    return RoundView(request_id, 0, context, temperature, 100, NgramIndex())


def made(
    probs: list[list[float]],
    head: list[float],
    *,
    p_src: float = 0.5,
    agreed: dict[int, Proposal] | None = None,
    hung: list[tuple[int, Proposal]] | None = None,
    view: RoundView | None = None,
) -> Candidates:
    """A block of `probs` [B, K] and n-gram rows.

    Args:
        agreed: the drafter's rows that the text proposes too, by row.
        hung: parent and proposal of each n-gram row. A token is its row's number.
    """
    count, width = len(probs), len(probs[0]) if probs else 1
    parents = [-1] + [max(0, 1 + (i - 1) * width) for i in range(count) for _ in range(width)]
    sources = [Source.ANCHOR] + [Source.SIBLING if k else Source.PICK for _ in range(count) for k in range(width)]
    evidence: list[Proposal | None] = [None] * len(parents)
    for row, proposal in (agreed or {}).items():
        evidence[row] = proposal
    for parent, proposal in hung or []:
        parents.append(parent)
        sources.append(Source.NGRAM)
        evidence.append(proposal)
    n = len(parents)
    tree = TokenTree(np.arange(n), np.array(parents), np.array(sources, np.int64), np.zeros(n, np.int64), np.ones(n))
    array = np.array(probs).reshape(count, width)
    return Candidates(
        view or view_of(), tree, array, np.array(head, np.float64), p_src, evidence, np.zeros(1, np.int64)
    )


def drawn(chance: np.random.Generator, view: RoundView | None = None, positions: int = 4, width: int = 4) -> Candidates:
    """Candidates of any kind: picks and siblings; at each depth nothing of the text, or what agrees, or a chain."""
    probs = -np.sort(-chance.dirichlet(np.full(width, 0.5), positions), axis=1) * chance.uniform(
        0.6, 1.0, (positions, 1)
    )
    head = 1.0 / (1.0 + np.exp(-chance.normal(0.5, 1.5, positions)))
    agreed: dict[int, Proposal] = {}
    hung: list[tuple[int, Proposal]] = []
    for depth in range(positions + 1):
        spine = 0 if depth == 0 else 1 + (depth - 1) * width
        first = copy(int(chance.integers(4, 40))) if chance.random() < 0.5 else follower(int(chance.integers(1, 9)))
        kind = chance.random()
        if kind < 0.3 and depth < positions:
            agreed[1 + depth * width + int(chance.integers(0, 2))] = first
        elif kind < 0.6:
            hung.append((spine, first))
            for above in range(1, int(chance.integers(1, 4))):
                hung.append((positions * width + len(hung), first._replace(above=above)))
    p_src = float(chance.uniform(0.2, 0.9))
    return made(probs.tolist(), head.tolist(), p_src=p_src, agreed=agreed, hung=hung, view=view)


def answer(chance: np.random.Generator, candidates: Candidates, q: FloatArray) -> tuple[IntArray, IntArray]:
    """Rows kept and the target's choices, when each accepted row's children are right with the chances `q`."""
    kept, wanted = [0], list[int]()
    while True:
        children = candidates.tree.children(kept[-1])
        chances = q[children]
        right = int(chance.choice(len(children) + 1, p=np.append(chances, max(0.0, 1.0 - chances.sum()))))
        if right == len(children):
            return np.array(kept), np.array([*wanted, NOTHING])
        wanted.append(int(candidates.tree.tokens[children[right]]))
        kept.append(int(children[right]))


def serve(
    model: AcceptanceModel, truth: Multinomial, rounds: int, make: Callable[[int], Candidates], seed: int = 0
) -> None:
    """Let `model` learn from rounds that `truth` answers."""
    chance = np.random.default_rng(seed)
    for i in range(rounds):
        candidates = make(i)
        model.learn(candidates, *answer(chance, candidates, truth.fitted(candidates)))
