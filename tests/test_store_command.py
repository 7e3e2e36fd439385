"""`firesteel store` as a user meets it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from firesteel.cli import app
from firesteel.errors import DamagedState, InvalidParameter
from firesteel.store.file import keep
from tests.store.samples import NAME, OWNER, learned, other


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of two files, one of them with two policies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "firesteel" / "store"
    keep(folder / NAME, OWNER, "auto", learned(1234, {"costs": {"1": 2.5}}, requests=56), print)
    keep(folder / NAME, OWNER, "adaspark", learned(7, {"weights": [0.5] * 1000}), print)
    whose = other(dtype="int8")
    keep(folder / whose.file_name(), whose, "auto", learned(3), print)
    return folder


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["store", *arguments], catch_exceptions=False, env={"COLUMNS": "240"})


def test_the_list_names_every_file_and_policy(store: Path) -> None:
    printed = run("show").stdout
    for word in (NAME, other(dtype="int8").file_name(), "adaspark", "1,234", "56", "2026-01-01T00:00:00Z", str(store)):
        assert word in printed


def test_the_list_as_json_has_no_states(store: Path) -> None:
    entries = json.loads(run("show", "--json").stdout)
    assert [entry["owner"]["dtype"] for entry in entries] == ["fp32", "int8"]
    assert entries[0]["policies"]["auto"] == {"written": "2026-01-01T00:00:00Z", "rounds": 1234, "requests": 56}
    assert entries[0]["bytes"] == (store / NAME).stat().st_size


@pytest.mark.parametrize("by", ["path", "name"])
def test_one_file_says_whose_it_is_and_what_is_in_it(store: Path, by: str) -> None:
    named = str(store / NAME) if by == "path" else NAME
    printed = run("show", named).stdout
    for word in ("a processor (AVX2)", "firesteel 0", "auto: 56 requests, 1,234 rounds", '{"1": 2.5}', "characters"):
        assert word in printed
    values = json.loads(run("show", named, "--json").stdout)
    assert values["owner"] == asdict(OWNER)
    assert values["policies"]["adaspark"]["state"] == {"weights": [0.5] * 1000}


def test_another_store_is_shown_by_its_folder(store: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert "nothing is stored" in run("show", str(tmp_path / "mine")).stdout
    assert json.loads(run("show", str(tmp_path / "mine"), "--json").stdout) == []


def test_a_damaged_file_is_shown_as_such_and_left_where_it_is(store: Path) -> None:
    (store / NAME).write_text("[red]")
    assert "cut short" in run("show").stdout
    assert "fault" in json.loads(run("show", "--json").stdout)[0]
    with pytest.raises(DamagedState, match=NAME):
        run("show", NAME)
    assert (store / NAME).read_text() == "[red]"


def test_a_file_that_is_not_there_is_an_error_that_names_both_places(store: Path) -> None:
    with pytest.raises(InvalidParameter, match=r"nowhere\.json.*store"):
        run("show", "nowhere.json")


def test_clear_removes_the_store_s_files_and_no_others(store: Path) -> None:
    (store / f"{NAME}.damaged-20260101").write_text("")
    (store / f".{NAME}.123-abc").write_text("of a killed process")
    (store / "notes.txt").write_text("somebody's")
    assert "removed 4 files" in run("clear").stdout
    assert [one.name for one in store.iterdir()] == ["notes.txt"]
    assert "removed 0 files" in run("clear").stdout


def test_an_empty_store_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "nothing is stored" in run("show").stdout
    assert "removed 0 files" in run("clear").stdout
    assert not any(tmp_path.iterdir())
