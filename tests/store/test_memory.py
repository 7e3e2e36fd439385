"""One policy's memory: taken up, written at the right times and off the decoding thread, and never an exception."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from firesteel.store import memory as module
from firesteel.store.file import Learned, keep, read
from firesteel.store.memory import EVERY_S, Memory
from tests.store.samples import NAME, OWNER, Pupil, learned


class Clock:
    """Scripted seconds."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def settle() -> None:
    """Wait for writing threads."""
    for thread in threading.enumerate():
        if thread.name == "firesteel-store":
            thread.join()


def rounds_in(folder: Path) -> int:
    return read(folder / NAME).policies["pupil"].rounds if (folder / NAME).exists() else 0


def test_a_second_process_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    first = Memory(Pupil(numbers=[0.1, 2.0]), tmp_path, OWNER)
    first.after(0)
    first.after(2)
    first.save()
    again = Pupil()
    second = Memory(again, tmp_path, OWNER)
    assert again.numbers == [0.1, 2.0]
    assert (second.rounds, second.requests) == (2, 2)
    second.after(1)
    second.save()
    assert read(tmp_path / NAME).policies["pupil"].requests == 3


def test_nothing_learned_is_nothing_written(tmp_path: Path) -> None:
    memory = Memory(Pupil(), tmp_path / "store", OWNER)
    memory.save()
    assert not any(tmp_path.iterdir())
    memory.after(1)
    memory.save()
    (tmp_path / "store" / NAME).unlink()
    memory.save()
    assert not any((tmp_path / "store").iterdir()), "it was written already"


def test_while_serving_it_is_written_after_a_request_and_not_too_often(tmp_path: Path) -> None:
    clock = Clock()
    memory = Memory(Pupil(), tmp_path, OWNER, clock=clock)
    seen = []
    for second in range(1, 101):
        clock.s = float(second)
        memory.after(1 if second % 7 == 0 else 0)
        settle()
        seen.append(rounds_in(tmp_path))
    assert sorted({*seen}) == [0, 35, 70], "rounds of the first requests' ends at least 30 s apart"
    assert EVERY_S == 30.0
    memory.save()
    assert rounds_in(tmp_path) == 100


def test_the_disk_is_left_to_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs holds up no round, and no second thread waits for it; what is learned meanwhile is not lost."""
    clock, hanging, threads = Clock(), threading.Event(), []

    def slow(*arguments: object) -> None:
        threads.append(threading.current_thread())
        hanging.wait()
        keep(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "keep", slow)
    policy = Pupil()
    memory = Memory(policy, tmp_path, OWNER, clock=clock)
    for rounds in range(5):
        clock.s += 2 * EVERY_S
        policy.numbers.append(rounds)  # also while the thread has not written: it has a snapshot
        memory.after(1)
    hanging.set()
    settle()
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    kept = read(tmp_path / NAME).policies["pupil"]
    assert kept == Learned(kept.written, 1, 1, {"numbers": [0]})
    memory.save()
    assert rounds_in(tmp_path) == 5


def test_a_state_that_its_policy_refuses_is_set_aside(tmp_path: Path) -> None:
    keep(tmp_path / NAME, OWNER, "pupil", learned(9, {"numbers": [1.0, -1.0]}), print)
    said: list[str] = []
    policy = Pupil()
    memory = Memory(policy, tmp_path, OWNER, say=said.append)
    assert policy.numbers == []
    assert memory.rounds == 0
    assert len(said) == 1
    assert "a negative number" in said[0]
    [aside] = tmp_path.iterdir()
    assert ".damaged-" in aside.name
    memory.after(1)
    memory.save()
    assert rounds_in(tmp_path) == 1


def test_another_policy_s_learning_stays_in_the_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        memory = Memory(Pupil(name, [1.0]), tmp_path, OWNER)
        memory.after(1)
        memory.save()
    assert sorted(read(tmp_path / NAME).policies) == ["one", "two"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    said: list[str] = []
    clock = Clock()
    memory = Memory(Pupil(), tmp_path / "file" / "store", OWNER, say=said.append, clock=clock)
    assert said == []
    for _ in range(3):
        clock.s += EVERY_S
        memory.after(1)
        settle()
    memory.save()
    assert len(said) == 1
    assert str(memory.file) in said[0]


def test_a_read_only_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised where the system would: permissions do not bind whoever runs tests as root."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", refused)
    said: list[str] = []
    memory = Memory(Pupil(), tmp_path, OWNER, say=said.append)
    memory.after(1)
    memory.save()
    assert len(said) == 1
    assert "Read-only file system" in said[0]
    monkeypatch.undo()
    memory.save()
    assert rounds_in(tmp_path) == 1, "what could not be written is tried again"


@pytest.mark.parametrize("number", [float("nan"), b"bytes"])
def test_a_state_that_is_not_json_is_one_line(tmp_path: Path, number: float) -> None:
    said: list[str] = []
    memory = Memory(Pupil(numbers=[number]), tmp_path, OWNER, say=said.append)
    for _ in range(2):
        memory.after(1)
        memory.save()
    assert len(said) == 1
    assert "pupil" in said[0]
    assert not any(tmp_path.iterdir())
