"""`firesteel data` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from firesteel.bench.prompts import held_out
from firesteel.errors import InvalidParameter
from firesteel.models.loading import load
from firesteel.train.chat import Chat
from firesteel.train.conversations import Conversation, read_folder, write_shard
from firesteel.train.data_commands import app
from tests.test_cli import firesteel
from tests.train import toy_chat


def data(*arguments: object) -> Any:
    """The command in this process, which has imported torch already; errors come out of it as they are."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_check_says_what_there_is(tmp_path: Path) -> None:
    looped = Conversation(np.array([1, *([7] * 60)]), 1, 0.6)
    write_shard(tmp_path / "shard00_0000.npz", [looped, Conversation(np.array([1, 2, 3]), 1, 0.0)])
    done = data("check", tmp_path, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == {
        "conversations": 2,
        "reply_tokens": 62,
        "looped": 1,
        "temperatures": {
            "0": {"conversations": 1, "reply_tokens": 2, "looped": 0},
            "0.6": {"conversations": 1, "reply_tokens": 60, "looped": 1},
        },
        "overlaps": None,
    }


def test_check_names_damage_and_exits_with_2(tmp_path: Path) -> None:
    write_shard(tmp_path / "shard00_0000.npz", [Conversation(np.array([1, 2, 300]), 1, 0.0)])
    done = firesteel("data", "check", str(tmp_path), "--vocab-size", "300")
    assert done.returncode == 2
    assert "shard00_0000.npz, conversation 0: a token id is not in 0..299" in done.stderr
    assert "Traceback" not in done.stderr


def test_check_finds_an_evaluation_prompt_by_decoding(tmp_path: Path) -> None:
    target = toy_chat.save(tmp_path / "target")
    chat = Chat(load(str(target)))
    prompts = [chat.prompt([{"role": "user", "content": turn}]) for turn in ("Why?", held_out()[1].turns[0])]
    write_shard(tmp_path / "shard00_0000.npz", [Conversation(np.array([*ids, 3, 1]), len(ids), 0.0) for ids in prompts])
    done = data("check", tmp_path, "--target", target)
    assert done.exit_code == 1, done.stderr
    assert "shard00_0000.npz, conversation 1: " in done.stdout
    assert "1 conversations hold an evaluation prompt" in done.stdout


def test_selfplay_answers_a_file_and_goes_on_where_it_was(tmp_path: Path) -> None:
    target = toy_chat.save(tmp_path / "target")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"What about {number}?"}) + "\n" for number in range(5)))
    options = ["--target", str(target), "--out", str(tmp_path / "out"), "--prompts", str(prompts), "--reply-len", "16"]
    options += ["--temperatures", "0", "--dtype", "fp32", "--eager", "--device", "cpu", "--seed", "2"]
    for limit, total in ((["--conversations", "3"], 3), ([], 5)):
        assert data("selfplay", *options, *limit).exit_code == 0
        assert sorted(one.index for one in read_folder(tmp_path / "out")) == [*range(1, total + 1)]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["shard02_0000.npz", "shard02_0001.npz"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say how much"),
        (["--conversations", "3", "--temperatures", "0,hot"], "'0,hot'"),
        (["--prompts", "nowhere.jsonl", "--server", "http://localhost"], "--server-model"),
        (["--prompts", "nowhere.jsonl"], r"nowhere\.jsonl"),
        (["--conversations", "3", "--openings", "nowhere.txt"], r"nowhere\.txt"),
        (["--conversations", "3", "--dtype", "fp23"], "did you mean 'fp32'"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        data("selfplay", "--out", tmp_path, *arguments)
