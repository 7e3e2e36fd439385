"""A trace is checked line by line, and what is wrong is named with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.errors import DamagedData, InvalidParameter
from firesteel.explain.trace import read
from firesteel.policy import make
from tests.explain.samples import rounds_of, saved, traced


@pytest.fixture(scope="module")
def text() -> str:
    return traced(make("adaspark"), 1)


def test_what_was_written_is_read(tmp_path: Path, text: str) -> None:
    trace = read(saved(tmp_path, text))
    assert not trace.unfinished
    for one, line in zip(trace.rounds, rounds_of(text), strict=True):
        assert (one.rows, one.verify_ms, one.first) == (line["rows"], line["verify_ms"], line["first"])
        assert one.tokens == sum(request["accepted"] + 1 for request in line["requests"])
        assert one.facts is not None
        assert one.facts.offered.verify_ms == line["facts"]["offered"]["verify_ms"]


@pytest.mark.parametrize("cut", [1, 40])
def test_a_last_line_without_its_end_is_left_out(tmp_path: Path, text: str, cut: int) -> None:
    trace = read(saved(tmp_path, text[:-cut]))
    assert trace.unfinished
    assert len(trace.rounds) == len(text.splitlines()) - 1


def changed(line: dict[str, Any], path: str, value: Any) -> str:
    *above, last = path.split(".")
    inner: Any = line
    for name in above:
        inner = inner[int(name)] if name.isdigit() else inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(line)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("rows", None, "rows is missing"),
        ("rows", 99, "rows is 99"),
        ("verify_ms", "fast", 'verify_ms is "fast"'),
        ("verify_ms", float("nan"), "verify_ms is NaN"),
        ("first", 1, "first is 1"),
        ("requests", {}, "requests is {}"),
        ("requests", [], "its requests have 0"),
        ("requests.0.context", -1, "requests[0].context is -1"),
        ("requests.0.accepted", 64, "the sources do not add up"),
        ("requests.0.sources.ngram", [0, 1], "sources.ngram is [0, 1]"),
        ("facts", 3, "facts is no object"),
        ("facts.rests.now", "no", 'facts.rests.now is "no"'),
        ("facts.offered.S", [1.0], "facts.offered.S is [1.0]"),
        ("facts.requests.0.loss", [1, 2.0], "facts.requests[0].loss is"),
        ("facts.widened", 2, "facts.widened is 2"),
    ],
)
def test_damage_is_named_with_file_and_line(tmp_path: Path, text: str, path: str, value: Any, said: str) -> None:
    lines = text.splitlines()
    lines[40] = changed(json.loads(lines[40]), path, value)
    with pytest.raises(DamagedData) as error:
        read(saved(tmp_path, "\n".join(lines) + "\n"))
    assert "trace.jsonl, line 41: " in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize("line", ["", "hello", "[]", "3", '{"step": 1}', '{"rows": '])
def test_a_foreign_line_is_named(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(DamagedData, match=r"trace\.jsonl, line 1: "):
        read(saved(tmp_path, f"{line}\n{text}"))


@pytest.mark.parametrize("text", ["", "\n", '{"policy": "adasp'])
def test_a_trace_without_a_round_is_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(DamagedData, match=r"trace\.jsonl, line 1"):
        read(saved(tmp_path, text))


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(DamagedData, match=r"trace\.jsonl, line 1: not JSON"):
        read(tmp_path / "trace.jsonl")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=r"none\.jsonl"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(InvalidParameter):
        read(tmp_path)
