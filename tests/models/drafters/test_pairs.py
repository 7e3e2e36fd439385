"""A target finds its drafter under every name that people give it."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.default_target import DEFAULT_TARGET
from firesteel.models.drafters import pairs
from firesteel.models.drafters.pairs import PAIRS, drafter_for


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-4B",
        "qwen3-4b",
        "~/models/Qwen3-4B/",
        "unsloth/Qwen3-4B-GGUF",
        "models/Qwen3-4B-Q4_K_M.gguf",
        "Qwen/Qwen3-4B-FP8",
        "mlx-community/Qwen3-4B-4bit",
        "Qwen3_4B.bf16.gguf",
    ],
)
def test_names_of_one_target(name: str) -> None:
    assert drafter_for(name) == "deepseek-ai/dspark_qwen3_4b_block7"


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B-Base", "Qwen/Qwen3-40B", "Qwen/Qwen3-4B-Thinking-2507", "", "gguf"])
def test_other_targets_have_none(name: str) -> None:
    assert drafter_for(name) is None


def test_the_default_target_has_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "SHIPPED", tmp_path)
    assert drafter_for(DEFAULT_TARGET) is None
    (tmp_path / "config.json").write_text("{}")
    for name in (DEFAULT_TARGET, "SmolLM2-135M-Instruct.Q4_1.gguf", "HuggingFaceTB/SmolLM2-135M-Instruct"):
        assert drafter_for(name) == str(tmp_path)


def test_every_pair_says_where_it_is_stated() -> None:
    assert all(pair.source and pair.drafter.count("/") == pair.target.count("/") == 1 for pair in PAIRS)
    assert len({pair.target for pair in PAIRS}) == len(PAIRS)
