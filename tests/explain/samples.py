"""Traces of scripted decodes."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from firesteel.engine.record import Trace
from firesteel.policy import Policy
from firesteel.rounds import BlockDraft
from tests.policy.scripted import Script, decode


def script(name: str, seed: int, length: int = 240) -> Script:
    """A request whose text repeats its first third once."""
    chance = random.Random(seed)
    head, tail = ([chance.randrange(50) for _ in range(length // 3)] for _ in range(2))
    return Script(name, head + head + tail, 12)


def block(text: list[int], at: int, length: int) -> BlockDraft | None:
    """A drafter that is right two times in three, and then now and then by a sibling."""
    tokens = []
    for i in range(at + 1, min(at + 1 + min(length, 7), len(text))):
        tokens.append([[text[i], -1, -2], [text[i], -1, -2], [-1, text[i], -2], [-1, -2, -3]][(i * 7 + text[i]) % 4])
    if not tokens:
        return None
    return BlockDraft(text[at], np.array(tokens), np.tile([0.7, 0.15, 0.1], (len(tokens), 1)))


def traced(policy: Policy, requests: int = 4, *, drafts: bool = True, batch: bool = False) -> str:
    """The lines of a trace of some requests, one after another or all at once."""
    lines, scripts = io.StringIO(), [script(f"request-{i}", i) for i in range(requests)]
    trace, chance = Trace(lines, policy), random.Random(7)
    for some in [scripts] if batch else [[one] for one in scripts]:
        decode(
            policy,
            some,
            lambda rows, _: 10.0 + 0.1 * rows + 3.0 * (rows > 8) + 0.5 * chance.random(),
            drafter=block if drafts else None,
            draft_ms=2.0,
            other_ms=0.5,
            record=trace,
        )
    return lines.getvalue()


def rounds_of(text: str) -> list[dict[str, Any]]:
    """The lines of a trace, parsed."""
    return [json.loads(line) for line in text.splitlines()]


def saved(folder: Path, text: str) -> Path:
    """A trace as a file."""
    file = folder / "trace.jsonl"
    file.write_text(text)
    return file
