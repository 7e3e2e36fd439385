"""One request's candidate tree: what the drafter and the request's own text propose (AdaSpark §2.2, §3.3).

    anchor ─┬─ pick 1 ─┬─ pick 2 ─── pick 3 ─── n ─── n ...   picks form the spine
            ├─ sibling ├─ sibling                             siblings are leaves
            ├─ sibling └─ n ─── n ─── n ...                   an n-gram chain hangs from the anchor and from every pick
            └─ n ─── n ─── n ...

A chain's step that a sibling already proposes marks the sibling as agreed and goes on below it. A step that the next
pick already proposes marks the pick and stops: the pick has its own chain.

Every edge gets a raw `q`: the drafter's own probability, or `ngram_price`. They are priors. A policy that learns
re-prices the same tree from the marks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firesteel.ngram import MAX_DEPTH, MIN_COPY, Kind, NgramIndex, Proposal
from firesteel.rounds import Draft, RoundView
from firesteel.tree import BoolArray, FloatArray, IntArray, Source, TokenTree


@dataclass(frozen=True, eq=False)
class Candidates:
    """A request's candidates and what is known of each.

    Fields:
        tree: all of them, priced raw; children of one parent sum to at most 1.
        agreed: `bool[N]` a drafter's candidate that the n-gram source proposes too.
        evidence: per row the n-gram proposal behind it, or None.
        line: rows of the main line, anchor first: the picks, then the n-gram chain below the last of them.
    """

    tree: TokenTree
    agreed: BoolArray
    evidence: list[Proposal | None]
    line: IntArray


def ngram_price(p_src: float, proposal: Proposal) -> float:
    """The prior of an n-gram candidate, given that its parent is accepted.

    A copy of the shortest length is as good as the source is on average, and one of length L is wrong less often in
    proportion: 1 - (1 - p_src) * 4 / L. A follower has its share of the followers seen, one unseen included:
    p_src * n / (N + 1).
    """
    if proposal.kind is Kind.COPY:
        return 1.0 - (1.0 - p_src) * MIN_COPY / proposal.length
    return p_src * proposal.times / (proposal.total + 1)


def share_out(parents: IntArray, q: FloatArray) -> FloatArray:
    """`float64[N]` prices, the children of one parent scaled down to sum to at most 1: at most one is right."""
    if len(q) == 1:
        return q
    sums = np.bincount(parents[1:], weights=q[1:])
    return np.concatenate([q[:1], q[1:] / np.maximum(sums, 1.0)[parents[1:]]])


def candidates(view: RoundView, draft: Draft | None, chain_len: int = MAX_DEPTH) -> Candidates:
    """The candidate tree of one request, at most `view.room` deep; the anchor alone when nothing is proposed.

    An n-gram chain has at most `chain_len` tokens, and none is deeper than 32: host time is spent on every row.

    Without a draft there are no siblings, so the most frequent follower is offered beside a copy that differs from it.
    """
    room = max(view.room, 0)
    if draft is None and not view.ngram.chain(max_len=min(1, room)):  # most rounds of text that does not repeat
        return Candidates(TokenTree.root(view.anchor), np.zeros(1, np.bool_), [None], np.zeros(1, np.int64))
    rows = _Rows(view.anchor, view.ngram.p_src)
    spine, picks = [0], list[int]()
    if draft is not None:
        block = zip(draft.top_tokens[:room].tolist(), draft.top_probs[:room].tolist(), strict=True)
        for tokens, probs in block:
            spine.append(rows.add_position(spine[-1], tokens, probs))
            picks.append(tokens[0])
    hung: list[int] = []
    for depth, parent in enumerate(spine):
        chain = view.ngram.chain(picks[:depth], min(1, room - depth))
        if chain and [chain[0].token] != picks[depth : depth + 1]:  # else the pick's own chain goes on
            chain = view.ngram.chain(picks[:depth], min(chain_len, room - depth))
        hung = rows.hang(parent, chain)
    if draft is None and hung:
        rows.hang_alternative(view.ngram, hung[0], min(chain_len, room))
    return rows.done(line=spine + hung)


class _Rows:
    """The rows of a tree in the making."""

    def __init__(self, anchor: int, p_src: float) -> None:
        self.p_src = p_src
        self.tokens, self.parents, self.sources, self.ranks = [anchor], [-1], [int(Source.ANCHOR)], [0]
        self.q: list[float] = [1.0]
        self.evidence: list[Proposal | None] = [None]
        self.row_of: dict[tuple[int, int], int] = {}  # (parent, token) -> row

    def add(self, parent: int, token: int, source: Source, rank: int, q: float, evidence: Proposal | None) -> int:
        """Append a row; return its number."""
        row = self.row_of[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.sources.append(source)
        self.ranks.append(rank)
        self.q.append(q)
        self.evidence.append(evidence)
        return row

    def add_position(self, parent: int, tokens: list[int], probs: list[float]) -> int:
        """Append the pick and the siblings of one drafted position; return the pick's row."""
        pick = self.add(parent, tokens[0], Source.PICK, 0, probs[0], None)
        for rank, (token, prob) in enumerate(zip(tokens[1:], probs[1:], strict=True)):
            self.add(parent, token, Source.SIBLING, rank, prob, None)
        return pick

    def hang(self, parent: int, chain: list[Proposal]) -> list[int]:
        """Hang an n-gram chain under `parent`, merged with what is there; return its rows, in order.

        Only the first step can meet a candidate: below it there is nothing yet, or a pick, which ends the chain.
        """
        if not chain:
            return []
        head, prices = chain[0], [ngram_price(self.p_src, proposal) for proposal in chain]
        row = self.row_of.get((parent, head.token))
        if row is None:
            row = self.add(parent, head.token, Source.NGRAM, 0, prices[0], head)
        else:
            self.evidence[row] = head
            self.q[row] = max(self.q[row], prices[0])
            if self.sources[row] == Source.PICK:
                return [row]  # its own chain goes on
        start, more = len(self.tokens), len(chain) - 1
        hung = [row, *range(start, start + more)]
        self.tokens += [proposal.token for proposal in chain[1:]]
        self.parents += hung[:-1]
        self.sources += [int(Source.NGRAM)] * more
        self.ranks += [0] * more
        self.q += prices[1:]
        self.evidence += chain[1:]
        return hung

    def hang_alternative(self, ngram: NgramIndex, first: int, depth: int) -> None:
        """Hang the most frequent follower beside `first`, a copy of another token: right only if the copy is not."""
        other = ngram.follower()
        if other is not None and other.token != self.tokens[first]:
            q = (1.0 - self.q[first]) * ngram_price(self.p_src, other)
            row = self.add(0, other.token, Source.NGRAM, 1, q, other)
            chain = ngram.chain([other.token], depth - 1)
            self.hang(row, [proposal._replace(above=proposal.above + 1) for proposal in chain])

    def done(self, line: list[int]) -> Candidates:
        """The tree and its marks."""
        parents, sources = np.array(self.parents), np.array(self.sources)
        q = share_out(parents, np.array(self.q))
        tree = TokenTree(np.array(self.tokens), parents, sources, np.array(self.ranks), q)
        found = np.array([proposal is not None for proposal in self.evidence])
        return Candidates(tree, found & (sources != Source.NGRAM), self.evidence, np.array(line))
