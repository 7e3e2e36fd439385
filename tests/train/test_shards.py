"""Shards of one seed: numbered, whole, and never twice the same conversation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firesteel.errors import DamagedData
from firesteel.train.conversations import Conversation, read_folder
from firesteel.train.shards import Shards


def conversation(index: int) -> Conversation:
    return Conversation(np.array([1, index, 2]), 1, 0.0, index)


def test_shards_are_written_as_they_fill_and_the_rest_at_the_end(tmp_path: Path) -> None:
    with Shards(tmp_path / "new" / "folder", 3, size=2) as shards:
        for index in (4, 0, 1):
            shards.add([conversation(index)])
        assert shards.done == {4, 0}
    names = [file.name for file in sorted((tmp_path / "new" / "folder").iterdir())]
    assert names == ["shard03_0000.npz", "shard03_0001.npz"]
    assert [one.index for one in read_folder(tmp_path / "new" / "folder")] == [4, 0, 1]


def test_what_is_there_is_kept_and_numbers_go_on(tmp_path: Path) -> None:
    for seed, index in ((3, 7), (3, 8), (4, 9)):
        with Shards(tmp_path, seed) as shards:
            shards.add([conversation(index)])
    (tmp_path / ".shard03_0002.npz.123").write_bytes(b"half a shard, of a run that was killed")
    assert Shards(tmp_path, 3).done == {7, 8}
    assert sorted(file.name for file in tmp_path.glob("shard*")) == [
        "shard03_0000.npz", "shard03_0001.npz", "shard04_0000.npz",
    ]  # fmt: skip


def test_after_an_error_what_is_whole_is_kept(tmp_path: Path) -> None:
    def stopped() -> None:
        with Shards(tmp_path, 0) as shards:
            shards.add([conversation(5)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert Shards(tmp_path, 0).done == {5}


def test_a_run_does_not_go_on_after_a_damaged_shard(tmp_path: Path) -> None:
    (tmp_path / "shard00_0000.npz").write_bytes(b"PK")
    with pytest.raises(DamagedData, match=r"shard00_0000\.npz"):
        Shards(tmp_path, 0)
