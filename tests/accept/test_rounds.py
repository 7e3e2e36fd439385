"""Whole rounds as a policy runs them, on scripted requests: price, order, explore, verify, learn, forget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from firesteel.accept.multinomial import Multinomial
from firesteel.candidates import candidates
from firesteel.rounds import BlockDraft
from tests.policy.scripted import Script

CHANCE = np.random.default_rng(0)
LINES = [CHANCE.integers(10, 500, 12).tolist() for _ in range(6)]


def script_of(name: str, lines: int) -> Script:
    """A text of lines that come again, in an order that nobody knows."""
    return Script(name, [token for i in CHANCE.integers(0, len(LINES), lines) for token in LINES[i]], 1)


def drafted(script: Script, chance: np.random.Generator, hits: float) -> BlockDraft:
    """A block whose picks are right with the chance `hits`, each by itself, and which always promises 0.9."""
    text = script.text[script.at + 1 : script.at + 8]
    tokens = [[token if chance.random() < hits else 1000 + token, 2000 + token] for token in text]
    return BlockDraft(script.text[script.at], np.array(tokens), np.tile([0.8, 0.1], (len(tokens), 1)))


def serve(model: Multinomial, script: Script, width: int = 8, hits: float = 0.5) -> list[tuple[float, int]]:
    """Decode the script to its end; return of each round the expected and the accepted rows."""
    chance, rounds = np.random.default_rng(0), []
    while script.left > 0:
        one = candidates(script.view(), drafted(script, chance, hits))
        tree = replace(one.tree, q=model.price(one))
        rows = np.sort(model.explore(one, tree.best_first(), width))
        placed = tree.take(rows)
        outcome = script.verify(placed)
        model.learn(one, rows[outcome.path], outcome.wanted)
        rounds.append((float(placed.survival[1:].sum()), len(outcome.path) - 1))
    model.forget(script.name)
    return rounds


def test_what_is_expected_of_trees_comes_near_to_what_they_accept() -> None:
    """Every second pick is wrong whatever it promises, and where lines come again the text knows better (§4.7)."""
    model = Multinomial()
    promised, accepted = np.mean(serve(model, script_of("first", 3)), axis=0)
    assert promised / accepted > 1.5
    for i in range(20):
        serve(model, script_of(f"r{i}", 12))
    assert model.guard.trusts_fit
    expected, accepted = np.mean(serve(model, script_of("last", 40)), axis=0)
    assert abs(expected / accepted - 1) < 0.15
    assert not model._requests
