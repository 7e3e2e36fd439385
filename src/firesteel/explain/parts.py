"""What a page is made of: parts with a title, words, a plot and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from firesteel.explain.svg import Plot
from firesteel.explain.trace import Facts, Round, Trace

NONE = "-"  # where a number cannot be had


@dataclass(frozen=True)
class Table:
    """Cells as they are printed; the first column is text, the others are numbers. Every row is as long as the head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Part:
    """A section of the page.

    Fields:
        title: which of the paper's figures or tables it is, and what it shows.
        words: paragraphs: how to read it, and what is only near to the paper's.
        points: a list of sentences after them.
    """

    title: str
    words: Sequence[str] = ()
    points: Sequence[str] = ()
    plot: Plot | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Page:
    """The whole: a title, what the trace is, and the parts in order."""

    title: str
    about: str
    parts: Sequence[Part] = field(default_factory=list)


def needs_adaspark(title: str, what: str) -> Part:
    """The part of a trace whose policy has nothing to say of it."""
    return Part(title, [f"Needs a trace of the policy adaspark: {what}."])


def chosen(trace: Trace) -> list[tuple[Round, Facts]]:
    """The rounds of which a width was chosen among offered ones."""
    return [(one, facts) for one, facts in trace.facts if facts.reason == "chosen"]


def band_name(band: int) -> str:
    """The contexts of one bit length."""
    return f"{1 << (band - 1)}-{(1 << band) - 1}" if band else "0"


def number(value: float | None, digits: int = 2) -> str:
    """A cell."""
    return NONE if value is None else f"{value:.{digits}f}"


def share(part: float, whole: float) -> str:
    """A cell: a part of a whole in per cent."""
    return f"{part / whole:.1%}" if whole else NONE
