"""The command line as a user meets it: what it prints, and what bad input gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.default_target import default_file


def firesteel(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "firesteel.cli", *arguments], input=stdin, capture_output=True, text=True, check=False
    )


def test_json_has_every_field_and_they_agree() -> None:
    done = firesteel(
        "generate", "one two three one two three one two", "--raw", "--max-tokens", "12", "--ignore-eos", "--json",
        "--compare", "--policy", "tree", "--width", "4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert set(answer) == {
        "text", "token_ids", "finish_reason", "usage", "speculation", "timing", "plain", "identical", "ratio",
    }  # fmt: skip
    assert answer["identical"] is True
    assert answer["plain"]["token_ids"] == answer["token_ids"]
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"]) == 12
    assert answer["finish_reason"] == "length"
    speculation = answer["speculation"]
    assert speculation["policy"] == "tree"
    assert speculation["drafter"] == "dspark"
    assert speculation["rows"] == speculation["offered"] + speculation["rounds"]
    assert speculation["tokens_per_round"] == pytest.approx(12 / speculation["rounds"])
    assert set(answer["timing"]) == {"load_s", "prefill_s", "decode_s", "decode_tokens_per_s"}
    assert answer["ratio"] == pytest.approx(
        answer["timing"]["decode_tokens_per_s"] / answer["plain"]["decode_tokens_per_s"]
    )


def test_a_reply_streams_to_stdout_and_its_summary_to_stderr(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    options = ("--raw", "--max-tokens", "5", "--no-store", "--trace", str(trace))
    done = firesteel("generate", "-", *options, stdin="one two three")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "5 tokens" in done.stderr
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    assert sum(one["requests"][0]["accepted"] + 1 for one in rounds) >= 5
    assert all(one["verify_ms"] > 0 for one in rounds)


def config_file(folder: Path, text: str) -> str:
    file = folder / "options.toml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "hi", "--target", "./nowhere"], "./nowhere"),
        (["generate", "hi", "--target", "nowhere.gguf"], "no such file: nowhere.gguf"),
        (["generate", "hi", "--policy", "trea"], "did you mean 'tree'"),
        (["generate", "hi", "--trace", "no/such/trace.jsonl"], "cannot write the trace no/such/trace.jsonl"),
        (["generate", "hi", "--width", "65"], "65"),
        (["generate", "hi", "--dtype", "fp23"], "did you mean 'fp32'"),
        (["generate", "hi", "--drafter", "ngrams"], "did you mean 'ngram'"),
        (["generate", "hi", "--temperature", "-1"], "temperature = -1.0"),
        (["generate", "hi", "--top-p", "1.5"], "top_p = 1.5"),
        (["bench", "decode", "--prompts", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = firesteel(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_unknown_key_in_a_config_file_names_the_nearest(tmp_path: Path) -> None:
    done = firesteel("generate", "hi", "--config", config_file(tmp_path, "polcy = 'off'"))
    assert done.returncode == 2
    assert "'polcy'; did you mean 'policy'" in done.stderr


def test_a_config_file_sets_defaults_and_the_command_line_wins(tmp_path: Path) -> None:
    file = config_file(tmp_path, "policy = 'off'\nmax-tokens = 3\nraw = true")
    assert "key" in firesteel("generate", "hi", "--config", file).stderr, "raw is the flag's name, chat the option's"
    file = config_file(tmp_path, "policy = 'off'\nmax-tokens = 3\nchat = false")
    answer = json.loads(firesteel("generate", "hi", "--config", file, "--json", "--max-tokens", "2").stdout)
    assert answer["speculation"]["policy"] == "off"
    assert answer["usage"]["completion_tokens"] == 2


def test_a_truncated_gguf_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "half.gguf"
    file.write_bytes(default_file().read_bytes()[:3_000_000])
    done = firesteel("generate", "hi", "--target", str(file))
    assert done.returncode == 2
    assert "half.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_prompt_longer_than_the_context_is_an_error_with_both_numbers() -> None:
    done = firesteel("generate", "-", "--raw", stdin="word " * 9000)
    assert done.returncode == 2
    assert "9001 tokens" in done.stderr or "9000 tokens" in done.stderr
    assert "8192" in done.stderr
