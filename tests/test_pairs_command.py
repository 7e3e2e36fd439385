"""`firesteel pairs` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from firesteel.cli import app
from firesteel.default_target import DEFAULT_TARGET
from firesteel.models.drafters import pairs


def listed(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["pairs", *arguments], catch_exceptions=False, env={"COLUMNS": "240"})


def test_json_is_the_table_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "SHIPPED", tmp_path)
    done = listed("--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == [vars(pair) for pair in pairs.PAIRS]


def test_the_shipped_drafter_comes_first_when_its_folder_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(pairs, "SHIPPED", tmp_path)
    first, *others = json.loads(listed("--json").stdout)
    assert first["target"] == DEFAULT_TARGET
    assert first["drafter"] == str(tmp_path)
    assert first["source"]
    assert len(others) == len(pairs.PAIRS)


def test_the_table_names_every_target_and_drafter() -> None:
    printed = listed().stdout
    for pair in pairs.PAIRS:
        assert pair.target in printed
        assert pair.drafter in printed
