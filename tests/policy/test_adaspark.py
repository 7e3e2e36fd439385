"""`adaspark` on a scripted clock: the best width from empty, little lost anywhere, and all of it in batches."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from firesteel.errors import DamagedState, InvalidParameter
from firesteel.policy import make
from firesteel.policy.adaspark import AdaSpark
from firesteel.policy.config import AdaSparkConfig
from firesteel.rounds import RoundReport
from firesteel.tree import Proposal, Source
from tests.policy.scripted import (
    Attention,
    Clock,
    Drafter,
    Guesser,
    Script,
    Swings,
    Trace,
    block_of_errors,
    block_of_script,
    decode,
)

T1 = 20.0
LINE = list(range(101, 111))
GUESSER = Guesser(positions=11)


def flat(rows: int, number: int) -> float:
    return T1 * (1 + 0.004 * (rows - 1))


def mild(rows: int, number: int) -> float:
    return T1 * (1 + 0.05 * (rows - 1))


def linear(rows: int, number: int) -> float:
    """Each row routed to experts of its own."""
    return T1 * (1 + 0.12 * (rows - 1))


def steep(rows: int, number: int) -> float:
    return T1 * 0.8 * rows


def stairs(rows: int, number: int) -> float:
    """Up to 8 rows in one tile, and from 25 on another kernel, cheaper than that of 9 to 24."""
    return T1 * (1.0 if rows <= 8 else 1.6 if rows <= 24 else 1.1)


def bursts(rows: int, number: int) -> float:
    """Three rounds in ten are disturbed, by half of their time on average."""
    dice = random.Random(number)
    return flat(rows, number) * (1 + (dice.expovariate(2.0) if dice.random() < 0.3 else 0.0))


def halting(now_ms: float) -> float:
    """A machine that runs at half its speed in every other two seconds."""
    return 1.0 + int(now_ms / 2000) % 2


def attending(rows: int, context: float) -> float:
    return rows * context / 2048


def novel(name: str = "novel", reply: int = 500, start: int = 0, temperature: float = 0.0) -> Script:
    """No three tokens ever come again."""
    dice = random.Random(name)
    text = [dice.randrange(49_000) for _ in range(200 + reply)]
    return Script(name, text, 200, start=start, temperature=temperature)


def repeating(name: str = "repeating", reply: int = 400) -> Script:
    """A line six times, and a reply that goes on with it."""
    return Script(name, (LINE * (7 + reply // len(LINE)))[: 6 * len(LINE) + reply], 6 * len(LINE))


def noisy(name: str = "noisy") -> Script:
    """Four tokens at random: something is proposed in every round, and is seldom right."""
    dice = random.Random(name)
    return Script(name, [dice.randrange(4) for _ in range(600)], 150)


def pinned(width: int) -> AdaSpark:
    return AdaSpark(AdaSparkConfig(pinned=True, width=width))


def speedup(policy: AdaSpark, script: Callable[[], Script], clock: Clock = mild, **drafting: Any) -> float:
    """Time of `off` over time of `policy`."""
    return decode(make("off"), [script()], clock).ms / decode(policy, [script()], clock, **drafting).ms


@dataclass(frozen=True)
class Scene:
    """A machine, and a request after which another of its kind follows.

    Fields:
        clock, attention, slowness: what a verify takes.
        best: widths of which one is the best of those that a policy is pinned to.
        cold, warm: least part of the best pinned width's speed, over both requests and over the second.
    """

    clock: Clock
    best: tuple[int, ...]
    attention: Attention = lambda rows, context: 0.0
    start: int = 0
    slowness: Callable[[float], float] = lambda now_ms: 1.0
    cold: float = 0.95
    warm: float = 0.97

    def run(self, policy: AdaSpark) -> tuple[float, float, Trace]:
        """Milliseconds of both requests, of the second, and the rounds of that."""
        first, second = novel("one", 900, self.start), novel("two", 700, self.start)
        settings: dict[str, Any] = {"drafter": GUESSER, "draft_ms": 3.0, "other_ms": 0.5, "attention": self.attention}
        settings["slowness"] = self.slowness
        one, two = (decode(policy, [one], self.clock, **settings) for one in (first, second))
        return one.work_ms + two.work_ms, two.work_ms, two


SCENES = {
    "flat": Scene(flat, (16, 32)),
    "stairs": Scene(stairs, (32,)),
    "linear": Scene(linear, (4, 8)),
    "short context": Scene(flat, (8, 16, 32), attending),
    "long context": Scene(flat, (4,), attending, start=12_000),
    "bursts": Scene(bursts, (16, 32)),
    "slows and recovers": Scene(mild, (8,), slowness=halting),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_best_width_is_reached_from_empty_and_kept(name: str) -> None:
    """Against the same policy pinned to each width of the ladder, which learns all else as well."""
    scene = SCENES[name]
    total, warm, trace = scene.run(AdaSpark())
    import sys
    pins = {width: scene.run(pinned(width)) for width in (2, 4, 8, 16, 32)}
    best = min(pins, key=lambda width: pins[width][1])
    print(name, best, {k: (round(v[0] / total, 3), round(v[1] / warm, 3)) for k, v in pins.items()}, file=sys.stderr)
    assert best in scene.best, "the scene is what it says"
    assert total <= pins[best][0] / scene.cold
    assert warm <= pins[best][1] / scene.warm
