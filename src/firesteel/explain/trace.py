"""A trace read back: the rounds that `engine.record` wrote, each checked before anything is made of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.cost.base import mean_context
from firesteel.errors import DamagedData, InvalidParameter

Pair = tuple[int, int]  # rows verified, rows of them accepted


@dataclass(frozen=True)
class Share:
    """One request's part of a round; fields as in `engine.record`."""

    id: str
    context: int
    candidates: int
    width: int
    expected: float
    accepted: int
    pick: Pair
    sibling: Pair
    ngram: Pair


@dataclass(frozen=True)
class Offered:
    """The offered widths side by side, n of each; see `policy.facts.widths`."""

    rows: list[int]
    verify_ms: list[float]
    S: list[float]
    tokens: list[float]
    V: list[float]


@dataclass(frozen=True)
class Facts:
    """What `adaspark` says of a round.

    Fields:
        reason: `chosen`, `measured`, `pinned`, or `alone`: nothing was proposed.
        drafted: positions drafted.
        rests, rest_rounds: whether the round rests from drafting, and the length of that rest; 0 if nothing ordered it.
        trusts_fit: whether the fitted model priced it.
        rate, held, fixed_ms, price_ms, offered, widened: see `policy.facts.widths`.
        agreed, loss: per request; see `policy.facts.labelled`.
    """

    reason: str
    drafted: int
    rests: bool
    rest_rounds: int
    trusts_fit: bool
    rate: float | None
    held: int | None
    fixed_ms: float
    price_ms: float | None
    offered: Offered
    widened: bool | None
    agreed: list[Pair]
    loss: list[tuple[int, float, float]]


@dataclass(frozen=True)
class Round:
    """One line. `facts` are None unless the policy is `adaspark`."""

    policy: str
    rows: int
    draft_ms: float
    verify_ms: float
    other_ms: float
    first: bool
    requests: list[Share]
    facts: Facts | None

    @property
    def ms(self) -> float:
        """All of its time."""
        return self.draft_ms + self.verify_ms + self.other_ms

    @property
    def tokens(self) -> int:
        """Committed by all requests."""
        return sum(one.accepted + 1 for one in self.requests)

    @property
    def context(self) -> float:
        """The mean over its rows."""
        return mean_context([one.context for one in self.requests], [one.width for one in self.requests])

    @property
    def band(self) -> int:
        """The bit length of its context."""
        return int(self.context).bit_length()

    @property
    def plain(self) -> bool:
        """Whether it is a round as without speculation: one row per request, and nothing was drafted."""
        if self.rows != len(self.requests):
            return False
        return not any(one.candidates for one in self.requests) if self.facts is None else not self.facts.drafted

    @property
    def chosen(self) -> bool:
        """Whether its width is of the kind that Figures 8 and 10 are about: no measurement."""
        return self.facts is None or self.facts.reason != "measured"


@dataclass(frozen=True)
class Trace:
    """A file of rounds; `unfinished` is whether a last line was left out that its writer could not end."""

    file: Path
    rounds: list[Round]
    unfinished: bool

    @property
    def facts(self) -> list[tuple[Round, Facts]]:
        """The rounds whose policy says what decided them."""
        return [(one, one.facts) for one in self.rounds if one.facts is not None]

    @property
    def timed(self) -> list[Round]:
        """The rounds whose times count: a request's first runs cold."""
        return [one for one in self.rounds if not one.first]


def read(file: Path) -> Trace:
    """Read a trace.

    Raises:
        InvalidParameter: the file cannot be read.
        DamagedData: a line is no round; the message names file and line. A last line without its end is left out.
    """
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise InvalidParameter(f"cannot read the trace {file}: {error.strerror}") from error
    rounds, unfinished = [], bool(lines[-1].strip())
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rounds.append(_round(_Fields(_parsed(line), "")))
        except ValueError as error:
            raise DamagedData(f"{file}, line {number}: {error}") from error
    if not rounds:
        raise DamagedData(f"{file}, line 1: the trace holds no finished round")
    return Trace(file, rounds, unfinished)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {line[:60].decode(errors='replace')!r}") from error


class _Fields:
    """An object of a line, read field by field; what is not there or not of its kind is a ValueError that names it."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{path[:-1] or 'the line'} is no object, so this is no round of a trace")
        self._values, self._path = value, path

    def has(self, name: str) -> bool:
        return name in self._values

    def any(self, name: str) -> Any:
        if name not in self._values:
            raise ValueError(f"{self._path}{name} is missing, so this is no round of a trace")
        return self._values[name]

    def inside(self, name: str) -> _Fields:
        return _Fields(self.any(name), f"{self._path}{name}.")

    def text(self, name: str) -> str:
        value: str = self.any(name)
        self._must(isinstance(value, str), name, value)
        return value

    def flag(self, name: str) -> bool:
        value: bool = self.any(name)
        self._must(isinstance(value, bool), name, value)
        return value

    def count(self, name: str, value: Any = None) -> int:
        count: int = self.any(name) if value is None else value
        self._must(type(count) is int and count >= 0, name, count)
        return count

    def number(self, name: str, value: Any = None) -> float:
        number: float = self.any(name) if value is None else value
        self._must(type(number) in (int, float) and math.isfinite(number), name, number)
        return number

    def several(self, name: str, length: int | None = None) -> list[Any]:
        values: list[Any] = self.any(name)
        self._must(isinstance(values, list) and length in (None, len(values)), name, values)
        return values

    def pair(self, name: str) -> Pair:
        verified, accepted = (self.count(name, value) for value in self.several(name, 2))
        self._must(accepted <= verified, name, [verified, accepted])
        return verified, accepted

    def _must(self, right: bool, name: str, value: Any) -> None:
        if not right:
            raise ValueError(f"{self._path}{name} is {json.dumps(value)[:60]}, so this is no round of a trace")


def _round(line: _Fields) -> Round:
    requests = [_share(_Fields(one, f"requests[{i}].")) for i, one in enumerate(line.several("requests"))]
    policy, rows = line.text("policy"), line.count("rows")
    if rows != sum(one.width for one in requests) or not requests:
        raise ValueError(f"rows is {rows}, and its requests have {sum(one.width for one in requests)}")
    facts = None
    if policy == "adaspark" and line.has("facts"):
        facts = _facts(line.inside("facts"), len(requests))
    draft_ms, verify_ms, other_ms = (line.number(f"{name}_ms") for name in ("draft", "verify", "other"))
    return Round(policy, rows, draft_ms, verify_ms, other_ms, line.flag("first"), requests, facts)


def _share(one: _Fields) -> Share:
    sources = one.inside("sources")
    pairs = [sources.pair(name) for name in ("pick", "sibling", "ngram")]
    width, accepted = one.count("width"), one.count("accepted")
    if (sum(verified for verified, _ in pairs), sum(kept for _, kept in pairs)) != (width - 1, accepted):
        raise ValueError(f"the sources do not add up to a width of {width} and {accepted} accepted rows")
    numbers = one.count("context"), one.count("candidates"), width, one.number("expected"), accepted
    return Share(one.text("id"), *numbers, *pairs)


def _facts(facts: _Fields, requests: int) -> Facts:
    rests, offered = facts.inside("rests"), facts.inside("offered")
    rows = [offered.count("rows", value) for value in offered.several("rows")]
    columns = [
        [offered.number(name, value) for value in offered.several(name, len(rows))]
        for name in ("verify_ms", "S", "tokens", "V")
    ]
    each = [_Fields(one, f"facts.requests[{i}].") for i, one in enumerate(facts.several("requests", requests))]
    return Facts(
        reason=facts.text("reason"),
        drafted=facts.count("drafted"),
        rests=rests.flag("now"),
        rest_rounds=rests.count("length"),
        trusts_fit=facts.inside("guard").flag("trusts_fit"),
        rate=None if facts.any("rate") is None else facts.number("rate"),
        held=None if facts.any("held") is None else facts.count("held"),
        fixed_ms=facts.number("fixed_ms"),
        price_ms=None if facts.any("price_ms") is None else facts.number("price_ms"),
        offered=Offered(rows, *columns),
        widened=None if facts.any("widened") is None else facts.flag("widened"),
        agreed=[one.pair("agreed") for one in each],
        loss=[_loss(one) for one in each],
    )


def _loss(one: _Fields) -> tuple[int, float, float]:
    count, fitted, head = one.several("loss", 3)
    return one.count("loss", count), one.number("loss", fitted), one.number("loss", head)
