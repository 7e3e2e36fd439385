"""The n-gram source: one request's own text, indexed by suffix (AdaSpark §3.3).

What comes next? Look for the last tokens earlier in the text:

    text    ... t h e   c a t   s a t  ...  t h e   c a t   _
                        ^^^^^^^ earlier             ^^^^^^^ now: a copy of length L, so propose what followed: s a t ...

    copy        the longest suffix, of 4 to 32 tokens, that occurred before; of its occurrences the most recent.
                The chain reads on along that passage, and where the passage reaches the end of the text, into the
                chain's own tokens: a line repeated goes on repeating.
    follower    else the most frequent follower of the last three tokens, the most recent one on a tie.

The index is a trie of *reversed* contexts, 32 tokens deep, with edges compressed: walking down from the newest token
backwards ends at the longest match, and every node remembers the latest position at which its string ended. A walk
meets at most 30 nodes, so a token costs the same in a short text and in a long one. The first three levels are one
dictionary, whose entries also count followers. A context enters only when its follower is known, and only committed
text enters: a rejected draft leaves no trace.

Not known here: token meaning, other requests, and probabilities beyond one number, `p_src`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

FOLLOWER_LEN: Final = 3  # tokens of the context whose followers are counted (§3.3: "the last three tokens")
MIN_COPY: Final = FOLLOWER_LEN + 1  # a shorter match is a follower's business: it has counts, not one witness
MAX_COPY: Final = 32  # longest match looked for; beyond it the most recent passage wins
MAX_DEPTH: Final = 32  # tokens below the anchor (§3.3)


class Kind(IntEnum):
    """How a proposal was found."""

    COPY = 0
    FOLLOWER = 1


class Proposal(NamedTuple):
    """One proposed token and its evidence.

    Fields:
        token: the proposed token.
        kind: `COPY` or `FOLLOWER`.
        length: tokens before it that match the earlier passage, guesses above it included: 3 for a follower; for a
            copy 4 to 32 where it is found, and one more for every token read on. All of them do match if the
            parent is accepted.
        times: for a follower, how often this token followed; 1 for a copy, which is one passage.
        total: for a follower, how often any token followed; 1 for a copy.
        above: n-gram guesses above this one in its chain, 0 for the first.
    """

    token: int
    kind: Kind
    length: int
    times: int
    total: int
    above: int


class _Node:
    """A string that ended at `latest` and maybe before; `children` by the token in front of it."""

    __slots__ = ("children", "depth", "latest")

    def __init__(self, depth: int, latest: int) -> None:
        self.depth = depth
        self.latest = latest
        self.children: dict[int, _Node] | None = None  # most nodes are leaves


class _Gram(_Node):
    """The node of a three-token context, which also counts what followed it."""

    __slots__ = ("best", "counts", "total")

    def __init__(self, latest: int) -> None:
        super().__init__(FOLLOWER_LEN, latest)
        self.counts: dict[int, int] = {}
        self.best = -1
        self.total = 0

    def follow(self, token: int) -> None:
        """Count one follower."""
        count = self.counts.get(token, 0) + 1
        self.counts[token] = count
        self.total += 1
        if count >= self.counts.get(self.best, 0):  # >= sends a tie to the most recent
            self.best = token


class NgramIndex:
    """The suffix index of one request's committed text, prompt and reply."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._text: list[int] = []
        self._grams: dict[tuple[int, ...], _Gram] = {}
        self._asked = 0  # positions at which the source had a proposal,
        self._right = 0  # and those at which it was what came
        self.extend(tokens)

    def __len__(self) -> int:
        """Committed tokens."""
        return len(self._text)

    @property
    def p_src(self) -> float:
        """The source's measured top-1 precision on the committed text (§3.3), with one right and one wrong assumed."""
        return (self._right + 1) / (self._asked + 2)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append committed tokens. Each is first compared with what would have been proposed, which gives `p_src`."""
        for token in map(int, tokens):
            if len(self._text) >= FOLLOWER_LEN:
                guess = self._insert(token)
                if guess is not None:
                    self._asked += 1
                    self._right += guess == token
            self._text.append(token)

    def chain(self, tail: Sequence[int] = (), max_len: int = MAX_DEPTH) -> list[Proposal]:
        """Proposals, each under the one before, below the committed text followed by `tail`.

        Args:
            tail: hypothetical tokens between the anchor and the chain; they are not recorded.
            max_len: tokens to propose; also at most `MAX_DEPTH - len(tail)`, so that none is deeper than 32.

        Returns:
            The chain, shorter than asked for where nothing is proposed, and empty at worst.
        """
        limit = min(max_len, MAX_DEPTH - len(tail))
        chain: list[Proposal] = []
        path = [int(token) for token in tail]
        while len(chain) < limit:
            gram, node, length = self._longest([*self._text[-MAX_COPY:], *path][-MAX_COPY:])
            if gram is None:
                break
            if length >= MIN_COPY:
                passage = self._read(node.latest + 1, path, limit - len(chain))
                above = len(chain)
                chain += [Proposal(t, Kind.COPY, length + i, 1, 1, above + i) for i, t in enumerate(passage)]
                break
            chain.append(_follower(gram, len(chain)))
            path.append(gram.best)
        return chain

    def chains(self, spine: Sequence[int], max_len: int = MAX_DEPTH) -> list[list[Proposal]]:
        """The chains below the anchor and below each token of `spine`, a path from the anchor: `len(spine) + 1` lists.

        Args:
            spine: the drafter's picks, say.
            max_len: depth below the anchor of the deepest proposal.
        """
        return [self.chain(spine[:depth], max_len - depth) for depth in range(len(spine) + 1)]

    def follower(self, tail: Sequence[int] = ()) -> Proposal | None:
        """The most frequent follower of the last three tokens of text and `tail`, whether or not there is a copy."""
        gram = self._grams.get(tuple([*self._text[-FOLLOWER_LEN:], *tail][-FOLLOWER_LEN:]))
        return None if gram is None else _follower(gram, 0)

    def _read(self, start: int, path: list[int], count: int) -> list[int]:
        """`count` tokens from `start` of the text, `path` and what has just been read: a period goes on for ever."""
        passage = self._text[start : start + count]
        if len(passage) < count:
            passage += path[: count - len(passage)]
            period = len(self._text) + len(path) - start
            passage += [passage[i % period] for i in range(len(passage), count)]
        return passage

    def _longest(self, context: list[int]) -> tuple[_Gram | None, _Node, int]:
        """The gram of the last three tokens, and the node and length of the longest match, which ends at its latest."""
        gram = self._grams.get(tuple(context[-FOLLOWER_LEN:]))
        if gram is None:
            return None, _NOWHERE, 0
        node: _Node = gram
        while node.children is not None and node.depth < len(context):
            child = node.children.get(context[-1 - node.depth])
            if child is None:
                break
            shared = self._shared(node, child, context)
            if shared < child.depth:
                return gram, child, shared
            node = child
        return gram, node, node.depth

    def _insert(self, token: int) -> int | None:
        """Enter the context before `token`, and return what would have been proposed in its place."""
        text, end = self._text, len(self._text) - 1
        context = text[-MAX_COPY:]
        key = tuple(context[-FOLLOWER_LEN:])
        gram = self._grams.get(key)
        if gram is None:
            self._grams[key] = gram = _Gram(end)
            guess = None
        else:
            guess = gram.best
        length = FOLLOWER_LEN
        gram.follow(token)
        node: _Node = gram
        node.latest = end
        while node.depth < len(context):
            front = context[-1 - node.depth]
            if node.children is None:
                node.children = {}
            child = node.children.get(front)
            if child is None:
                node.children[front] = _Node(len(context), end)
                break
            found, length = child.latest, self._shared(node, child, context)
            if length < child.depth:  # the two strings part inside the edge: split it there
                split = _Node(length, end)
                split.children = {text[found - length]: child}
                node.children[front] = child = split
            child.latest = end
            node = child
        return text[found + 1] if length >= MIN_COPY else guess

    def _shared(self, node: _Node, child: _Node, context: list[int]) -> int:
        """How many last tokens of `context` the string of `child` shares; the string of `node` and one more it does."""
        low, high = node.depth + 1, child.depth
        if low == high:
            return high
        text, latest, size = self._text, child.latest, len(context)
        if text[latest - high + 1 : latest - low + 1] == context[size - high : size - low]:
            return high
        while text[latest - low] == context[size - 1 - low]:
            low += 1
        return low


_NOWHERE: Final = _Node(0, -1)


def _follower(gram: _Gram, above: int) -> Proposal:
    return Proposal(gram.best, Kind.FOLLOWER, FOLLOWER_LEN, gram.counts[gram.best], gram.total, above)
