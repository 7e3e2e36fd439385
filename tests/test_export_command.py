"""`firesteel export` from a drafter on disk to what another engine is told to load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.bench import peers
from firesteel.errors import InvalidParameter, MissingTool
from firesteel.export_command import export, how_to_serve
from firesteel.models.drafters.checkpoint import save_drafter
from tests.models.drafters import small


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one of the default target's width, vocabulary and depth."""
    settings = small.config(
        "dspark", layers=1, causal=(False,), windows=(None,), hidden=576, target_hidden=576, vocab=49152,
        draft_vocab=64, mask_token_id=16, target_layers=(3, 15, 27),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("drafters") / "mine"
    save_drafter(small.model(settings), settings, folder)
    return folder


def test_the_files_and_how_they_are_served(drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(str(drafter), tmp_path / "a" / "out", "speculators")
    said = json.loads((tmp_path / "a" / "out" / "config.json").read_text())
    assert said["aux_hidden_state_layer_ids"] == [4, 16, 28]
    line = capsys.readouterr().out.replace("\n", "")
    assert "vllm serve HuggingFaceTB/SmolLM2-135M-Instruct --speculative-config" in line
    assert '"method": "dspark"' in line
    with pytest.raises(InvalidParameter, match="exists already"):
        export(str(drafter), tmp_path / "a" / "out", "speculators")


def test_a_gguf_is_made_by_llama_cpps_converter(drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def convert(folder: Path, dtype: str, file: Path, *, target_folder: Path | None = None) -> None:
        seen.update(dtype=dtype, config=json.loads((folder / "config.json").read_text()))
        assert target_folder is not None
        seen["tokenizer"] = (target_folder / "tokenizer.json").is_file()
        file.write_text("gguf")

    monkeypatch.setattr(peers, "converter", lambda: tmp_path)
    monkeypatch.setattr(peers, "convert", convert)
    export(str(drafter), tmp_path / "out", "gguf", dtype="fp32")
    assert seen["dtype"] == "fp32"
    assert seen["tokenizer"]
    assert seen["config"]["target_layer_ids"] == [3, 15, 27]
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["drafter.f32.gguf"]


def test_wrong_words_fail_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(MissingTool, match="make llama-cpp"):
        export("nowhere", tmp_path / "out", "gguf")
    with pytest.raises(InvalidParameter, match="did you mean 'bf16'"):
        export("nowhere", tmp_path / "out", "gguf", dtype="bf61")
    with pytest.raises(InvalidParameter, match="did you mean 'deepspec'"):
        export("nowhere", tmp_path / "out", "deepspce")


@pytest.mark.parametrize(
    ("kind", "format", "wanted"),
    [
        ("dspark", "gguf", "--spec-type draft-dspark -md d/drafter.bf16.gguf --spec-draft-n-max 5"),
        ("dflash2", "gguf", "--spec-type draft-dflash -md d/drafter.bf16.gguf --spec-draft-n-max 4"),
        ("dflash", "deepspec", '"method": "dflash", "model": "d", "num_speculative_tokens": 4'),
    ],
)
def test_the_method_is_said_and_never_guessed_from_a_path(kind: str, format: str, wanted: str) -> None:
    assert wanted in how_to_serve(small.config(kind), format, Path("d"), "bf16")
