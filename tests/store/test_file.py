"""A file of learned things: whole or not at all, merged, sealed, and set aside when it is no good."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firesteel.errors import DamagedState, InvalidParameter
from firesteel.store.file import MOST_BYTES, Stored, files_of, keep, read, set_aside, store_folder, taken, to_text
from tests.store.samples import NAME, OWNER, learned, other


def written(folder: Path, rounds: int = 5, name: str = "auto") -> Path:
    keep(folder / NAME, OWNER, name, learned(rounds), _never)
    return folder / NAME


def _never(line: str) -> None:
    raise AssertionError(line)


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    file = written(tmp_path / "new" / "folder")
    state = {"text": 'ä\n,\n"sha256": "', "numbers": [0.1, 1e-300, 7], "none": None}
    keep(file, OWNER, "other", learned(1, state, requests=3), _never)
    assert read(file) == Stored(OWNER, {"auto": learned(5), "other": learned(1, state, requests=3)})
    assert [one.name for one in file.parent.iterdir()] == [NAME]


def test_a_person_can_read_it(tmp_path: Path) -> None:
    text = written(tmp_path).read_text()
    assert json.loads(text)["belongs_to"]["processor"] == "a processor (AVX2)"
    assert '  "dtype": "fp32",\n' in text
    assert '"auto": {"written": "2026-01-01T00:00:00Z", "rounds": 5, "requests": 1,' in text


def test_of_one_policy_the_learning_of_more_rounds_stays(tmp_path: Path) -> None:
    file = written(tmp_path, rounds=10)
    keep(file, OWNER, "auto", learned(9), _never)
    assert read(file).policies["auto"].rounds == 10
    keep(file, OWNER, "auto", learned(10, "later"), _never)
    assert read(file).policies["auto"].state == "later"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path)
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        keep(file, OWNER, "auto", learned(6), _never)
    assert file.read_bytes() == before
    assert files_of(tmp_path) == [file]


def _killed(file: Path) -> None:
    os.replace = lambda *_: os._exit(9)  # type: ignore[assignment]
    keep(file, OWNER, "auto", learned(6), _never)


def test_a_process_killed_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    file = written(tmp_path)
    process = multiprocessing.get_context("spawn").Process(target=_killed, args=(file,))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert read(file).policies["auto"].rounds == 5
    left = [one for one in files_of(tmp_path) if one != file]
    assert len(left) == 1, "its temporary file, which `store clear` finds"
    written(tmp_path, rounds=7)
    assert read(file).policies["auto"].rounds == 7


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "zeros": lambda good: bytes(len(good)),
    "not text": lambda good: b"\xff\xfe" + good,
    "not json": lambda good: b"learned a lot",
    "a list": lambda good: b"[]",
    "deep": lambda good: b"[" * 100_000,
    "cut in the middle": lambda good: good[: len(good) // 2],
    "its last byte cut": lambda good: good[:-1],
    "more behind it": lambda good: good + b"{}",
    "a digit changed": lambda good: good.replace(b'"of": 5', b'"of": 6'),
    "another header": lambda good: good.replace(b'"fp32"', b'"int8"'),
    "another owner's file": lambda good: to_text(Stored(other(threads=2), {"auto": learned(5)})).encode(),
    "rounds that are none": lambda good: to_text(Stored(OWNER, {"auto": learned(-5)})).encode(),
    "huge": lambda good: bytes(MOST_BYTES + 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_is_no_good_is_set_aside_with_one_line(tmp_path: Path, kind: str) -> None:
    file = written(tmp_path)
    file.write_bytes(bad := DAMAGE[kind](file.read_bytes()))
    with pytest.raises(DamagedState):
        read(file)
    said: list[str] = []
    assert taken(file, said.append) == {}
    assert len(said) == 1
    [aside] = tmp_path.iterdir()
    assert aside.name.startswith(f"{NAME}.damaged-2")
    assert aside.read_bytes() == bad
    assert str(file) in said[0]
    assert aside.name in said[0]
    assert "\n" not in said[0]
    assert taken(file, _never) == {}, "nothing is there now"
    assert written(tmp_path).exists()


def test_a_format_of_the_future_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firesteel.store.file.FORMAT", 2)
    file = written(tmp_path)
    monkeypatch.undo()
    with pytest.raises(DamagedState, match="format 2, not 1"):
        read(file)


def test_what_cannot_be_read_at_all_is_set_aside_too(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    said: list[str] = []
    assert taken(tmp_path / NAME, said.append) == {}
    assert len(said) == 1
    assert not (tmp_path / NAME).exists()


def test_a_damaged_file_that_cannot_be_renamed_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path)
    file.write_bytes(b"")

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    said: list[str] = []
    assert taken(file, said.append) == {}
    assert "Permission denied" in said[0]
    monkeypatch.undo()
    file.unlink()
    set_aside(file, "another process was quicker", _never)


def _writer(file: Path, name: str, times: int) -> None:
    for rounds in range(1, times + 1):
        keep(file, OWNER, name, learned(rounds, [rounds] * 2000), _never)


def test_two_processes_write_at_once_and_no_reader_sees_half_a_file(tmp_path: Path) -> None:
    """Nobody is told of damage, neither the writers (`_never`) nor the reader; a later write is in it beside others."""
    file = tmp_path / NAME
    context: Any = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_writer, args=(file, name, 150)) for name in ("a", "a", "b")]
    for writer in writers:
        writer.start()
    read_whole = 0
    while any(writer.is_alive() for writer in writers):
        try:
            stored = read(file)
        except FileNotFoundError:
            continue
        read_whole += 1
        for one in stored.policies.values():
            assert one.state == [one.rounds] * 2000
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert read_whole > 0
    for name in "ab":
        keep(file, OWNER, name, learned(150, f"{name} alone"), _never)
    assert {name: one.state for name, one in read(file).policies.items()} == {"a": "a alone", "b": "b alone"}
    assert files_of(tmp_path) == [file]


def test_a_store_is_the_user_s_a_folder_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert store_folder(True) == tmp_path / "cache" / "firesteel" / "store"
    assert store_folder(False) is None
    assert store_folder(str(tmp_path / "mine")) == tmp_path / "mine"
    assert not any(tmp_path.iterdir()), "nothing is created before there is something to write"
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParameter, match="file is none"):
        store_folder(tmp_path / "file")
