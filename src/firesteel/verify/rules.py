"""Which path of a tree the target keeps, and the token after it. Three rules, one walk each.

    rule     keeps a child when                          lossless for
    greedy   it is the target's argmax                   any tree, T = 0
    match    it is the token drawn from p                any tree, any T
    reject   it survives a test against its own q        trees of genuine draws (TreeSpark §3.3), any T

`parents[i] < i` and siblings lie in the order they were proposed, so a single sweep over the rows visits, below every
kept row, its children in that order. Siblings are distinct tokens.

A rule asks for a row's probabilities when it stands on that row and not before: the rows off the path cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from firesteel.errors import LosslessViolation
from firesteel.rounds import VerifyOutcome
from firesteel.sampling import ACCEPT_DRAW, draw, key_of, uniform
from firesteel.tree import FloatArray, Proposal, TokenTree

Rows = Callable[[int], FloatArray]  # row -> float64[V], the distribution of the token after that row


class Dice(Protocol):
    """Where chance enters a rule. `depth` is the row's distance from the anchor."""

    def token(self, p: FloatArray, depth: int) -> int:
        """A token drawn from p[V], in the form that these dice take."""
        ...

    def accepts(self, probability: float, depth: int, sibling: int) -> bool:
        """True with the given probability (1 and more: always); the test of the sibling-th child, from 0."""
        ...


@dataclass(frozen=True)
class KeyedDice:
    """Draws that depend on (seed, position) alone: not on the tree, the round, the batch or the machine.

    Fields:
        seed: the request's.
        position: how many tokens were generated before this round; the row at depth d decides token `position + d`.
        pick: `sampling.draw`, or `sampling.draw_scores` where the rows are scores; or a twin of theirs on a device.
    """

    seed: int
    position: int
    pick: Callable[[FloatArray, int], int] = draw

    def token(self, p: FloatArray, depth: int) -> int:
        return self.pick(p, key_of(self.seed, self.position + depth))

    def accepts(self, probability: float, depth: int, sibling: int) -> bool:
        return uniform(self.seed, self.position + depth, ACCEPT_DRAW + sibling) < probability


def greedy(tree: TokenTree, wanted: Callable[[int], int]) -> VerifyOutcome:
    """T = 0: keep the longest path on which every token is the argmax of the row above it.

    `wanted(row)` is the argmax of a row; with an array of them, pass its `.item`.
    """
    return _follow(tree, wanted)


def match(tree: TokenTree, p: Rows, dice: Dice) -> VerifyOutcome:
    """Draw from p at each kept row and follow the child that equals the draw.

    Proof. The token after a kept row is a draw from p there, whatever the children are: they decide only whether the
    next draw is made in this round or in the next. With `KeyedDice` it is moreover the very token that plain decoding
    draws at that position, so the text is the same for every tree.

    `p` is passed on to the dice unread: any form of a distribution will do that they can draw from.
    """
    depths = tree.depths
    return _follow(tree, lambda row: dice.token(p(row), int(depths[row])))


def _follow(tree: TokenTree, choose: Callable[[int], int]) -> VerifyOutcome:
    path, wanted = [0], [choose(0)]
    for row, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
        if parent == path[-1] and token == wanted[-1]:
            path.append(row)
            wanted.append(choose(row))
    return _outcome(path, wanted)


def reject(tree: TokenTree, p: Rows, q: Rows, dice: Dice) -> VerifyOutcome:
    """Recursive rejection on the residual, with siblings drawn without replacement (TreeSpark §3.3).

    `q(row)` is the distribution that the first child of `row` was drawn from, temperature and filters included.

    Proof. The j-th child of a kept row was drawn from q_j (`without` its earlier siblings), and p_j is what the target
    still owes after they were rejected. Accepting x with probability min(1, p_j(x) / q_j(x)), else owing p_{j+1}, the
    normalised max(p_j - q_j, 0), pays p_j exactly (Leviathan et al. 2023, one step): min(p_j, q_j) by acceptance and
    the rest by what follows. The last p_j is paid by a draw. By induction over siblings, then over depth, every token
    follows p. The proof needs each child to be a draw from its q_j: a looked-up, dropped or reordered one is not.

    The arithmetic uses only what numpy arrays and torch tensors share: the engine runs this function on a device.

    Raises:
        LosslessViolation: the tree is `FIXED`, or holds a child that its q_j cannot have drawn.
    """
    if tree.proposal is not Proposal.DRAWN:
        raise LosslessViolation("`reject` needs draws: a looked-up tree is verified by `match`")
    path, wanted = [0], []
    depth = sibling = 0
    owed, proposal = p(0), None
    for row, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
        if parent != path[-1]:
            continue
        proposal = q(parent) if proposal is None else proposal
        if not proposal[token] > 0:
            raise LosslessViolation(f"row {row} holds token {token}, which its recorded q cannot have drawn")
        if dice.accepts(float(owed[token] / proposal[token]), depth, sibling):
            path.append(row)
            wanted.append(token)
            depth, sibling = depth + 1, 0
            owed, proposal = p(row), None
        else:
            owed, proposal = residual(owed, proposal), without(proposal, token)
            sibling += 1
    wanted.append(dice.token(owed, depth))
    return _outcome(path, wanted)


def residual(p: FloatArray, q: FloatArray) -> FloatArray:
    """What the target owes after a draw from q was rejected: max(p - q, 0), normalised; float64[V].

    The mass is 0 only where p = q, and then no rejection happens but by rounding: p stands.
    """
    rest = (p - q).clip(0)
    mass = rest.sum()
    return rest / mass if mass > 0 else p


def without(q: FloatArray, token: int) -> FloatArray:
    """The distribution of the next sibling: q renormalised without `token`; all zero when nothing is left; float64[V].

    A drafter that draws the siblings uses this very function, so that the recorded q is the sampled one.
    """
    rest = q * 1  # a copy, in numpy and in torch
    rest[token] = 0
    mass = rest.sum()
    return rest / mass if mass > 0 else rest


def _outcome(path: list[int], wanted: list[int]) -> VerifyOutcome:
    return VerifyOutcome(np.array(path, np.int64), wanted[-1], np.array(wanted, np.int64))
