"""Token trees: the rows of one verify, as flat arrays.

Row 0 is the **anchor**, the newest committed token; every other row is a guess. `parents[i] < i`, so one forward
sweep over the rows visits every parent before its children.

             0 anchor             tokens   [ A  a  b  c  d ]
            / \\                  parents  [-1  0  0  1  3 ]
       1 a       2 b              depths   [ 0  1  1  2  3 ]
       |
      3 c                         a chain is the tree with one child per row;
       |                          no speculation is the tree of one row
      4 d
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from firesteel.errors import LosslessViolation

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Source(IntEnum):
    """Where a row comes from."""

    ANCHOR = 0
    PICK = 1
    SIBLING = 2
    NGRAM = 3


class Proposal(Enum):
    """How the tokens were chosen, which decides the verification rule."""

    FIXED = "fixed"  # looked up: top-K, n-gram. Verified by `greedy` or `match`.
    DRAWN = "drawn"  # sampled without replacement from q. Verified by `greedy` or `reject`.


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A tree of candidate tokens under the anchor.

    Fields, all of length N (the width):
        tokens: token ids.
        parents: row of the parent; -1 for the anchor.
        sources: a `Source` per row.
        ranks: rank of the candidate among its parent's candidates of the same source, 0 first.
        q: probability that the row is accepted if its parent is; 1 for the anchor.
        proposal: `FIXED` or `DRAWN`.
    """

    tokens: IntArray
    parents: IntArray
    sources: IntArray
    ranks: IntArray
    q: FloatArray
    proposal: Proposal = Proposal.FIXED

    def __post_init__(self) -> None:
        lengths = (n := len(self.tokens), len(self.parents), len(self.sources), len(self.ranks), len(self.q))
        assert n >= 1 and lengths.count(n) == 5, f"a tree needs equal arrays and at least the anchor, got {lengths}"
        assert self.parents[0] == -1, "row 0 is the anchor and has no parent"
        assert n == 1 or self.parents[1:].min() >= 0, "only the anchor has no parent"
        assert (self.parents < np.arange(n)).all(), "every parent comes before its children"

    @classmethod
    def root(cls, anchor: int) -> TokenTree:
        """The tree of one row: no speculation."""
        return cls.chain(anchor, [])

    @classmethod
    def chain(
        cls,
        anchor: int,
        tokens: Sequence[int],
        source: Source = Source.PICK,
        q: float | FloatArray = 1.0,
        proposal: Proposal = Proposal.FIXED,
    ) -> TokenTree:
        """The anchor and one guess under another; `q` of all guesses, or of each."""
        n = len(tokens) + 1
        sources = np.full(n, int(source), np.int64)
        sources[0] = Source.ANCHOR
        edge = np.ones(n)
        edge[1:] = q
        return cls(
            tokens=np.array([anchor, *tokens], np.int64),
            parents=np.arange(-1, n - 1, dtype=np.int64),
            sources=sources,
            ranks=np.zeros(n, np.int64),
            q=edge,
            proposal=proposal,
        )

    @property
    def width(self) -> int:
        """Rows, the anchor included."""
        return len(self.tokens)

    @cached_property
    def depths(self) -> IntArray:
        """`int64[N]` distance from the anchor."""
        depths = [0]  # plain lists: element access to arrays would cost several times more
        for parent in self.parents[1:].tolist():
            depths.append(depths[parent] + 1)
        return np.array(depths, np.int64)

    @cached_property
    def survival(self) -> FloatArray:
        """`float64[N]` Q: the product of q from the anchor down to the row (AdaSpark Eq. 1)."""
        q = self.q.tolist()
        survival = q[:1]
        for parent, edge in zip(self.parents[1:].tolist(), q[1:], strict=True):
            survival.append(survival[parent] * edge)
        return np.array(survival, np.float64)

    @cached_property
    def ancestor_mask(self) -> BoolArray:
        """`bool[N, N]`: row i sees row j, that is j is i or one of its ancestors."""
        mask = np.eye(self.width, dtype=np.bool_)
        for row in range(1, self.width):
            mask[row] |= mask[self.parents[row]]
        return mask

    def children(self, row: int) -> IntArray:
        """Rows whose parent is `row`, in row order, which is the order they were proposed in."""
        return np.flatnonzero(self.parents == row)

    def path(self, row: int) -> list[int]:
        """Rows from the anchor down to `row`, both included."""
        path = [row]
        while path[-1] != 0:
            path.append(int(self.parents[path[-1]]))
        return path[::-1]

    def take(self, rows: Sequence[int] | IntArray) -> TokenTree:
        """The subtree of the given rows in the given order; the anchor first, parents before children.

        Raises:
            LosslessViolation: the tree is `DRAWN`: dropping or reordering draws after they are seen is biased
                (TreeSpark §3.3).
        """
        if self.proposal is Proposal.DRAWN:
            raise LosslessViolation("a drawn tree cannot be resized: dropping draws by value biases the text")
        rows = np.asarray(rows, np.int64)
        new_row = np.full(self.width, -1, np.int64)
        new_row[rows] = np.arange(len(rows))
        parents = self.parents[rows]
        parents = np.where(parents < 0, -1, new_row[parents])
        return TokenTree(
            self.tokens[rows], parents, self.sources[rows], self.ranks[rows], self.q[rows], proposal=self.proposal
        )

    def best_first(self) -> IntArray:
        """Rows by decreasing survival, ties to the lower row: every prefix is a tree (AdaSpark Prop. 1)."""
        return np.argsort(-self.survival, kind="stable")

    def prefix(self, width: int) -> TokenTree:
        """The first `width` rows of the best-first order, kept in row order."""
        return self.take(np.sort(self.best_first()[:width]))

    def clamp(self, depth: int) -> TokenTree:
        """The rows no deeper than `depth`."""
        if self.width == 1 or int(self.depths.max()) <= depth:
            return self
        return self.take(np.flatnonzero(self.depths <= depth))
