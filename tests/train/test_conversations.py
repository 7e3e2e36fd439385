"""Shards: what is written is read, and whatever is damaged is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firesteel.bench.statistics import is_looped
from firesteel.errors import DamagedData, InvalidParameter
from firesteel.train.conversations import (
    Conversation,
    Count,
    read_folder,
    read_shard,
    summary,
    without_loops,
    write_shard,
)

SHIPPED = Path(__file__).parents[2] / "data" / "selfplay"
THREE = [
    Conversation(np.array([1, 5, 6, 7, 2]), 2, 0.0, 4),
    Conversation(np.array([1, 8, 9]), 1, 0.6, 0),
    Conversation(np.array([1, 3, 3, 3, 4, 2]), 5, 1.0, 7),
]


@pytest.mark.parametrize("largest", [9, 65_535, 65_536])
def test_what_is_written_is_read(tmp_path: Path, largest: int) -> None:
    written = [*THREE, Conversation(np.array([1, largest]), 1, 0.6)]
    file = tmp_path / "shard00_0000.npz"
    write_shard(file, written)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert np.load(file)["ids"].dtype == (np.uint16 if largest < 2**16 else np.int32)
    for read, known in zip(read_shard(file, largest + 1), written, strict=True):
        assert read.ids.tolist() == known.ids.tolist()
        assert read.reply.tolist() == known.ids[known.prompt_len :].tolist()
        assert (read.prompt_len, read.temperature, read.index) == (known.prompt_len, known.temperature, known.index)


def test_a_folder_is_read_in_order_and_summed_by_temperature(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard00_0001.npz", THREE[2:])
    write_shard(tmp_path / "shard00_0000.npz", THREE[:2])
    assert [conversation.index for conversation in read_folder(tmp_path)] == [4, 0, 7]
    assert summary(tmp_path) == {0.0: Count(1, 3, 0), 0.6: Count(1, 2, 0), 1.0: Count(1, 1, 0)}
    with pytest.raises(InvalidParameter, match=r"no shard\*.npz"):
        summary(tmp_path / "nowhere")


def test_the_shipped_shards_read() -> None:
    """And are as many as their README says."""
    counts = summary(SHIPPED, vocab_size=49_152)
    rows = [line.split("|") for line in (SHIPPED / "README.md").read_text().splitlines() if line.startswith("| ")][1:]
    conversations, tokens = (sum(int(row[at].replace(",", "")) for row in rows) for at in (3, 4))
    assert sum(count.conversations for count in counts.values()) == conversations > 0
    assert sum(count.reply_tokens for count in counts.values()) == tokens
    assert list(counts) == [0.0, 0.6, 1.0]
    assert all(conversation.index == -1 for conversation in read_folder(SHIPPED))


def spoilt(folder: Path, **changes: Any) -> Path:
    """A shard of THREE with some of its arrays replaced; None leaves one out."""
    file = folder / "shard00_0000.npz"
    write_shard(file, THREE)
    arrays = {**np.load(file), **changes}
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"offsets": np.array([0, 8, 5, 14])}, "conversation 1: its offsets do not rise"),
        ({"offsets": np.array([0, 5, 5, 14], np.uint32)}, "conversation 1: its offsets do not rise"),
        ({"offsets": np.array([0, 5, 8, 13])}, "from 0 to 13, but ids from 0 to 14"),
        ({"offsets": np.array([0, 5, 14])}, "3 offsets, 3 prompt_len"),
        ({"prompt_len": np.array([2, 3, 5])}, "conversation 1: its prompt_len"),
        ({"prompt_len": np.array([0, 1, 5])}, "conversation 0: its prompt_len"),
        ({"ids": np.array([1, 5, 6, 7, 2, 1, 8, 9, 1, 3, 3, 99, 4, 2])}, "conversation 2: a token id"),
        ({"temperature": np.array([0, np.nan, 1], np.float16)}, "conversation 1: its temperature"),
        ({"temperature": np.array([0.0, 1.0])}, "2 temperature"),
        ({"ids": None}, "no 'ids'"),
        ({"ids": np.zeros((2, 7), np.int32)}, "'ids' is int32 of shape"),
        ({"ids": np.array(["a"] * 14, object)}, "not a shard"),
    ],
)
def test_damage_is_named_with_file_and_record(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    file = spoilt(tmp_path, **changes)
    with pytest.raises(DamagedData, match=said) as raised:
        read_shard(file, vocab_size=50)
    assert str(file) in str(raised.value)


def test_a_file_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    file = spoilt(tmp_path)
    whole = file.read_bytes()
    for length in range(0, len(whole), 97):
        file.write_bytes(whole[:length])
        with pytest.raises(DamagedData, match=r"shard00_0000\.npz"):
            read_shard(file)


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        (list(range(60)), 60),
        ([*range(100, 110), *([1, 2, 3] * 20)], 16),
        ([*range(100, 110), *([1, 2, 3] * 20), 1], 16),
        ([7] * 48, 2),
        ([9, *([7] * 48)], 3),
        ([*([1, 2, 3] * 20), 9], 61),  # it found its way out
    ],
)
def test_a_loop_is_kept_twice(reply: list[int], kept: int) -> None:
    cut = without_loops(Conversation(np.array([1, 1, 1, *reply]), 3, 0.0, 5))
    assert cut.reply.tolist() == reply[:kept]
    assert cut.ids[:3].tolist() == [1, 1, 1]
    assert (cut.prompt_len, cut.index) == (3, 5)
    assert not is_looped(cut.reply)


def test_data_is_read_and_checked_without_torch() -> None:
    script = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
    script += "import firesteel.train.shards, firesteel.train.prompts, firesteel.train.data_commands"
    subprocess.run([sys.executable, "-c", script], check=True)
