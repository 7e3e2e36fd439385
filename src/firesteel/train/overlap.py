"""Whether a text holds an evaluation prompt. No drafter is trained on any of those, held out or not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from firesteel.bench.prompts import SHIPPED

SHINGLE_WORDS = 13


class Overlap:
    """Finds the words that a text shares with evaluation prompts.

    Words are compared in lower case and whatever the space between them. A prompt is found by any 13 words of it in a
    row, one with fewer words by all of them in a row.

    Args:
        prompts: user turns to look for; None for every turn that ships with the package.
    """

    def __init__(self, prompts: Iterable[str] | None = None) -> None:
        self._known: set[str] = set()
        self._lengths: set[int] = set()
        for prompt in shipped() if prompts is None else prompts:
            if words := prompt.lower().split():
                length = min(len(words), SHINGLE_WORDS)
                self._lengths.add(length)
                self._known.update(_runs(words, length))

    def find(self, text: str) -> str | None:
        """The first shared run of words, or None."""
        words = text.lower().split()
        runs = (run for length in sorted(self._lengths) for run in _runs(words, length))
        return next((run for run in runs if run in self._known), None)


def shipped() -> Iterator[str]:
    """Every user turn of the package's own evaluation prompts."""
    for file in sorted(SHIPPED.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            yield from json.loads(line)["turns"]


def _runs(words: list[str], length: int) -> Iterator[str]:
    return (" ".join(words[start : start + length]) for start in range(len(words) - length + 1))
