"""One request's candidate tree: what the drafter and the request's own text propose (AdaSpark §2.2, §3.3).

    anchor ─┬─ pick 1 ─┬─ pick 2 ─── pick 3 ─── n ─── n ...   picks form the spine
            ├─ sibling ├─ sibling                             siblings are leaves
            ├─ sibling └─ n ─── n ─── n ...                   an n-gram chain hangs from the anchor and from every pick
            └─ n ─── n ─── n ...

A chain's step that a sibling already proposes marks the sibling as agreed and goes on below it. A step that the next
pick already proposes marks the pick and stops: the pick has its own chain.

Every edge gets a raw `q`: the drafter's own probability, or `ngram_price`. They are priors. A model of acceptance
re-prices the same tree from the marks and from the numbers that stand beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from firesteel.ngram import MAX_DEPTH, MIN_COPY, Kind, NgramIndex, Proposal
from firesteel.rounds import Draft, RoundView
from firesteel.tree import BoolArray, FloatArray, IntArray, Source, TokenTree

EVIDENCE_BUCKETS: Final = 8  # four lengths of a copy, four counts of a follower
NGRAM_BUCKETS: Final = 5 * EVIDENCE_BUCKETS  # by how many of the chain's guesses stand above


@dataclass(frozen=True, eq=False)
class Candidates:
    """A request's candidates and what was known of each when they were made.

    Fields:
        view: the request. Its index goes on with the text, so what was read of it is in the fields below.
        tree: all of them, priced raw; children of one parent sum to at most 1. Rows 1 to B K are the drafter's,
            position by position, the pick of each before its siblings; the others are n-gram rows.
        probs: `float64[B, K]` the drafter's own probability of each of its rows; B is 0 without a draft.
        head: `float64[B]` its chance of each pick, if those before it are accepted (`Draft.head`).
        p_src: the n-gram source's measured precision (`NgramIndex.p_src`).
        evidence: per row the n-gram proposal behind it, or None.
        line: rows of the main line, anchor first: the picks, then the n-gram chain below the last of them.
    """

    view: RoundView
    tree: TokenTree
    probs: FloatArray
    head: FloatArray
    p_src: float
    evidence: list[Proposal | None]
    line: IntArray

    @cached_property
    def bucket(self) -> IntArray:
        """`int64[N]` the bucket of each row's n-gram proposal (`bucket_of`); -1 where there is none."""
        return np.array([-1 if proposal is None else bucket_of(proposal) for proposal in self.evidence])

    @cached_property
    def agreed(self) -> BoolArray:
        """`bool[N]` a drafter's candidate that the n-gram source proposes too."""
        agreed: BoolArray = (self.bucket >= 0) & (self.tree.sources != Source.NGRAM)
        return agreed

    @cached_property
    def rival(self) -> IntArray:
        """`int64[N]` contradictions: of a drafter's row beside which the text proposes another, that other; else 0.

        The text proposes one token at most beside drafter's rows; the row that proposes it has no rival.
        """
        parents, drafted = self.tree.parents, self.probs.size
        proposed = np.zeros(self.tree.width, np.int64)  # by parent
        found = np.flatnonzero(self.bucket >= 0)
        proposed[parents[found]] = found
        rival = np.zeros(self.tree.width, np.int64)
        rival[1 : drafted + 1] = proposed[parents[1 : drafted + 1]]
        rival[found] = 0
        return rival


def bucket_of(proposal: Proposal) -> int:
    """The n-gram bucket of AdaSpark Eq. 6, from 0 to 39: 8 times the class of what stands above, plus the evidence.

    Evidence of a copy, 0 to 3: 4, 8, 16 or 32 tokens and more that match if the parent is accepted. Of a follower,
    4 to 7: it came once, 2, 4 or 8 times and more. Above: 0, 1, 2, 4 or 8 and more guesses of the same chain, of which
    the first may be a sibling that agrees.

    §3.3 names evidence, kind and guesses above and leaves the bins open. In powers of two, candidates of a bin are
    alike and bins are few enough to fill. A copy's length is counted to the parent and not to where the chain began, so
    that the fourth token of a short copy has the evidence of the first token of a longer one.
    """
    if proposal.kind is Kind.COPY:
        evidence = min(proposal.length.bit_length(), 6) - 3
    else:
        evidence = min(proposal.times.bit_length(), 4) + 3
    return EVIDENCE_BUCKETS * min(proposal.above.bit_length(), 4) + evidence


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
    ngram, room = view.ngram, max(view.room, 0)
    rows = _Rows(view, draft, room)
    hung: list[int] = []
    if draft is None:
        hung = rows.hang(0, ngram.chain(max_len=min(chain_len, room)))
        if hung:
            rows.hang_alternative(ngram, hung[0], min(chain_len, room))
        return rows.done([0, *hung])
    for depth, parent in enumerate(rows.spine):
        chain = ngram.chain(rows.picks[:depth], min(1, room - depth))
        if chain and [chain[0].token] != rows.picks[depth : depth + 1]:  # else the pick's own chain goes on
            chain = ngram.chain(rows.picks[:depth], min(chain_len, room - depth))
        hung = rows.hang(parent, chain)
    return rows.done(rows.spine + hung)


class _Rows:
    """The rows of a tree in the making: the anchor and the block, then what is hung there.

    Plain lists: element access to arrays would cost several times more.
    """

    def __init__(self, view: RoundView, draft: Draft | None, room: int) -> None:
        self.view, self.p_src = view, view.ngram.p_src
        self.probs = np.zeros((0, 1)) if draft is None else draft.top_probs[:room]
        self.head = np.zeros(0) if draft is None else draft.head[:room]
        block: list[list[int]] = [] if draft is None else draft.top_tokens[:room].tolist()
        count, width = self.probs.shape
        self.picks = [tokens[0] for tokens in block]
        self.spine = [0, *range(1, count * width, width)]
        self.tokens, self.parents = [view.anchor], [-1]
        for parent, tokens in zip(self.spine, block, strict=False):  # below the last pick there is no position
            self.tokens += tokens
            self.parents += [parent] * width
        self.sources = [int(Source.ANCHOR)] + ([int(Source.PICK)] + [int(Source.SIBLING)] * (width - 1)) * count
        self.ranks = [0, *[0, *range(width - 1)] * count]
        self.q: list[float] = [1.0, *self.probs.ravel().tolist()]
        self.evidence: list[Proposal | None] = [None] * len(self.tokens)

    def add(self, parent: int, rank: int, q: float, proposal: Proposal) -> int:
        """Append an n-gram row; return its number."""
        self.tokens.append(proposal.token)
        self.parents.append(parent)
        self.sources.append(Source.NGRAM)
        self.ranks.append(rank)
        self.q.append(q)
        self.evidence.append(proposal)
        return len(self.tokens) - 1

    def proposed(self, parent: int, token: int) -> int | None:
        """The drafter's row for `token` under a row of the spine; None where it does not propose it."""
        width = self.probs.shape[1]
        first = parent + width if parent else 1  # from one pick to the next, past its siblings
        block = self.tokens[first : min(first + width, self.probs.size + 1)]
        return first + block.index(token) if token in block else None

    def hang(self, parent: int, chain: list[Proposal]) -> list[int]:
        """Hang an n-gram chain under a row of the spine, merged with what is there; return its rows, in order.

        Only the first step can meet a candidate: below it there is nothing yet, or a pick, which ends the chain.
        """
        if not chain:
            return []
        head, price = chain[0], ngram_price(self.p_src, chain[0])
        row = self.proposed(parent, head.token)
        if row is None:
            row = self.add(parent, 0, price, head)
        else:
            self.evidence[row] = head
            self.q[row] = max(self.q[row], price)
            if self.sources[row] == Source.PICK:
                return [row]  # its own chain goes on
        return [row, *self.follow(row, chain[1:])]

    def follow(self, row: int, chain: list[Proposal]) -> range:
        """Append a chain under a row without children; return the chain's rows."""
        start, more = len(self.tokens), len(chain)
        self.tokens += [proposal.token for proposal in chain]
        self.parents += [row, *range(start, start + more - 1)][:more]
        self.sources += [int(Source.NGRAM)] * more
        self.ranks += [0] * more
        self.q += [ngram_price(self.p_src, proposal) for proposal in chain]
        self.evidence += chain
        return range(start, start + more)

    def hang_alternative(self, ngram: NgramIndex, first: int, depth: int) -> None:
        """Hang the most frequent follower beside `first`, a copy of another token: right only if the copy is not."""
        other = ngram.follower()
        if other is not None and other.token != self.tokens[first]:
            row = self.add(0, 1, (1.0 - self.q[first]) * ngram_price(self.p_src, other), other)
            chain = ngram.chain([other.token], depth - 1)
            self.follow(row, [proposal._replace(above=proposal.above + 1) for proposal in chain])

    def done(self, line: list[int]) -> Candidates:
        """The tree, and what stands beside it."""
        parents, q = np.array(self.parents), np.array(self.q)
        if self.probs.size:  # of the text alone, a chain and an alternative to it, no family has more than 1
            q = share_out(parents, q)
        tree = TokenTree(
            tokens=np.array(self.tokens),
            parents=parents,
            sources=np.array(self.sources),
            ranks=np.array(self.ranks),
            q=q,
        )
        return Candidates(self.view, tree, self.probs, self.head, self.p_src, self.evidence, np.array(line))
