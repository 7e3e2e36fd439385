"""A toy target, a toy drafter and trees that grow one child at a time, for the law tests."""

from __future__ import annotations

import numpy as np

from firesteel.tree import Proposal, Source, TokenTree
from firesteel.verify.rules import without
from tests.verify.chance import ScriptedDice

V = 4
ANCHOR = 0


def softmax(x, temperature=1.0):
    w = np.exp(np.asarray(x) / temperature)
    return w / w.sum()


class Toy:
    """A distribution for every text: logits from a table of the last two tokens, so depth matters."""

    def __init__(self, seed: int, scale: float = 1.5) -> None:
        self.logits = np.random.default_rng(seed).normal(0, scale, (V + 1, V + 1, V))
        self.known: dict[object, np.ndarray] = {}

    def __call__(self, text: tuple[int, ...], temperature: float = 1.0) -> np.ndarray:
        if (text, temperature) not in self.known:
            before, last = (V, V, *text)[-2:]
            p = softmax(self.logits[before, last], temperature)
            p.flags.writeable = False  # a rule that wrote into a distribution would spoil the next branch
            self.known[text, temperature] = p
        return self.known[text, temperature]


P, Q = Toy(1), Toy(2)


class Growth:
    """A tree under construction; `drawn` children come from the drafter's dice, `placed` ones are looked up."""

    def __init__(self, dice: ScriptedDice | None = None, proposal: Proposal = Proposal.DRAWN) -> None:
        self.dice, self.proposal = dice, proposal
        self.tokens, self.parents, self.left = [ANCHOR], [-1], {}

    def text(self, row: int) -> tuple[int, ...]:
        return (*self.text(self.parents[row]), self.tokens[row]) if row else ()

    def placed(self, parent: int, token: int) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        return len(self.tokens) - 1

    def drawn(self, parent: int, temperature: float = 1.0) -> int:
        q = self.left.get(parent)
        q = Q(self.text(parent), temperature) if q is None else q
        token = self.dice.token(q)
        self.left[parent] = without(q, token)
        return self.placed(parent, token)

    def tree(self) -> TokenTree:
        n = len(self.tokens)
        kinds = np.full(n, int(Source.PICK))
        return TokenTree(
            np.array(self.tokens), np.array(self.parents), kinds, np.zeros(n, np.int64), np.ones(n), self.proposal
        )
