"""`firesteel explain` as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.policy import make
from tests.explain.samples import saved, traced


def firesteel(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "firesteel.cli", "explain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_trace_becomes_a_page_a_text_and_a_summary(tmp_path: Path) -> None:
    file = saved(tmp_path, traced(make("adaspark"), 1)[:-9])
    done = firesteel(str(file), "--markdown", str(tmp_path / "trace.md"))
    assert done.returncode == 0, done.stderr
    assert "tokens per round" in done.stdout and "was left out" in done.stdout
    assert (tmp_path / "trace.html").read_text().startswith("<!DOCTYPE html>")
    assert "## Table 7" in (tmp_path / "trace.md").read_text()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["trace.html", "trace.jsonl", "trace.md"]


def test_the_page_goes_where_it_is_told(tmp_path: Path) -> None:
    file = saved(tmp_path, traced(make("off"), 1))
    assert firesteel(str(file), "--html", str(tmp_path / "page.html")).returncode == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["page.html", "trace.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["foreign.jsonl"], "foreign.jsonl, line 1: "),
        (["trace.jsonl", "--html", "trace.jsonl"], "the trace itself"),
        (["trace.jsonl", "--html", "no/such/folder.html"], "cannot write"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    saved(tmp_path, traced(make("off"), 1))
    (tmp_path / "foreign.jsonl").write_text('{"step": 1}\n')
    done = firesteel(*(word if word.startswith("--") else str(tmp_path / word) for word in arguments))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.html"))
