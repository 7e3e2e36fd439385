"""Loading and saving: what is written comes back, and what does not fit is refused before weights are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3Config

from firesteel.errors import DamagedData, FiresteelError, InvalidParameter, TargetNotFound, UnsupportedModel
from firesteel.models.drafters import stored
from firesteel.models.drafters.checkpoint import check_pair, load_drafter, save_drafter
from firesteel.models.drafters.config import DrafterConfig
from tests.models.drafters import small

FORMATS = ("deepspec", "speculators")
YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 128}
DRAFTERS: dict[str, DrafterConfig] = {
    "dflash": small.config("dflash"),
    "dflash anchor first": small.config("dflash", anchor_first=True),
    "dspark": small.config("dspark"),
    "dspark in place": small.config("dspark", anchor_first=False),
    "dspark gated": small.config("dspark", markov_kind="gated", confidence_markov=False),
    "dspark rnn": small.config("dspark", markov_kind="rnn", confidence=False, confidence_markov=False),
    "dspark reduced": small.config("dspark", draft_vocab=23, target="owner/target"),
    "dflash2": small.config("dflash2"),
    "sliding": small.config("dflash", windows=(7, None), causal=(True, False), attention_bias=True),
    "sliding both ways": small.config("dflash", windows=(7, 7)),
    "yarn": small.config("dspark", rope=YARN),
}


def target_config(**changes: Any) -> Qwen3Config:
    settings = {"vocab_size": small.VOCAB, "hidden_size": small.HIDDEN, "num_hidden_layers": 6}
    return Qwen3Config(**(settings | changes))


def write(folder: Path, settings: DrafterConfig | None = None, **more: Any) -> Path:
    """A drafter on disk, exactly as it is in memory."""
    settings = settings or small.config()
    save_drafter(small.model(settings), settings, folder, dtype=torch.float32, **more)
    return folder


def edit(folder: Path, **keys: Any) -> None:
    """Change keys of a config.json; None takes a key out."""
    raw = json.loads((folder / "config.json").read_text()) | keys
    (folder / "config.json").write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))


def tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def rewrite(folder: Path, changed: dict[str, Tensor]) -> None:
    save_file(changed, folder / "model.safetensors")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("settings", DRAFTERS.values(), ids=DRAFTERS)
def test_what_is_written_comes_back(tmp_path: Path, settings: DrafterConfig, format: str) -> None:
    model, (embed, head) = small.model(settings), small.tables()
    save_drafter(model, settings, tmp_path / "d", format=format, embed=embed, head=head, dtype=torch.float32)
    loaded = load_drafter(tmp_path / "d", target_config=target_config())
    assert loaded.model.config == settings
    assert loaded.notes == ()
    assert loaded.model.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(loaded.model.state_dict()[name], tensor, rtol=0, atol=0)
    model.lend(embed, head)
    for name in ("embed", "head", "kept", "inv_freq"):
        theirs, ours = getattr(loaded.model, name), getattr(model, name)
        assert (theirs is None) == (ours is None)
        assert ours is None or torch.equal(theirs, ours)


def test_both_tap_conventions_are_one_apart(tmp_path: Path) -> None:
    written = {}
    for format in FORMATS:
        write(tmp_path / format, format=format)
        written[format] = json.loads((tmp_path / format / "config.json").read_text())
    assert written["deepspec"]["target_layer_ids"] == [1, 3, 4]
    assert written["speculators"]["aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert all(raw["sample_from_anchor"] is True for raw in written.values())
    assert written["speculators"]["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5


def test_d2t_holds_offsets_and_t2d_the_members(tmp_path: Path) -> None:
    settings = small.config(draft_vocab=23)
    kept = small.model(settings).kept
    held = tensors(write(tmp_path / "d", settings))
    assert torch.equal(held["d2t"] + torch.arange(23), kept)
    assert torch.equal(held["t2d"].nonzero()[:, 0], kept)
    assert held["markov_head.markov_w1.weight"].shape[0] == small.VOCAB


def test_tables_are_lent_where_the_file_has_none(tmp_path: Path) -> None:
    settings = small.config(draft_vocab=23)
    embed, head = small.tables()
    model = load_drafter(write(tmp_path / "d", settings), target_config=target_config()).model
    assert model.embed is None and model.head is None
    model.lend(embed, head)
    assert torch.equal(model.head, head[model.kept])


def test_a_head_of_kept_rows_is_written_as_it_is(tmp_path: Path) -> None:
    settings = small.config(draft_vocab=23)
    _, head = small.tables()
    rows = head[small.kept_ids(settings)]
    write(tmp_path / "rows", settings, head=rows)
    write(tmp_path / "whole", settings, head=head)
    for folder in ("rows", "whole"):
        assert torch.equal(tensors(tmp_path / folder)["lm_head.weight"], rows)


def test_a_padded_target_lends_its_first_rows(tmp_path: Path) -> None:
    model = load_drafter(write(tmp_path / "d"), target_config=target_config(vocab_size=64)).model
    embed, head = torch.randn(64, small.HIDDEN), torch.randn(64, small.HIDDEN)
    model.lend(embed, head)
    assert torch.equal(model.head, head[: small.VOCAB])


def test_weights_are_bf16_unless_said_otherwise(tmp_path: Path) -> None:
    settings = small.config()
    save_drafter(small.model(settings), settings, tmp_path / "d")
    assert {tensor.dtype for tensor in tensors(tmp_path / "d").values()} == {torch.bfloat16}
    assert load_drafter(tmp_path / "d").model.fc.weight.dtype == torch.float32


def test_names_of_other_spellings(tmp_path: Path) -> None:
    """vLLM's prefix, z-lab's codebook modules, training's leftovers."""
    folder = write(tmp_path / "d", small.config("dflash2"))
    spelled = {f"model.{key}{'.weight' if 'codebook' in key else ''}": value for key, value in tensors(folder).items()}
    rewrite(folder, spelled | {"t2d": torch.ones(3), "verifier_lm_head.weight": torch.ones(3)})
    assert load_drafter(folder).notes == ()


def test_files_in_parts(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    held = tensors(folder)
    expected = load_drafter(folder).model.state_dict()
    (folder / "model.safetensors").unlink()
    first, parts = sorted(held)[: len(held) // 2], {}
    for index, names in enumerate([first, sorted(held.keys() - set(first))]):
        file = f"model-{index + 1:05d}-of-00002.safetensors"
        save_file({name: held[name] for name in names}, folder / file)
        parts |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    loaded = load_drafter(folder).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DamagedData, match="model-00002-of-00002"):
        load_drafter(folder)


def test_confidence_head_without_bias_and_without_weights(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    held = tensors(folder)
    rewrite(folder, {key: value for key, value in held.items() if key != "confidence_head.proj.bias"})
    model = load_drafter(folder).model
    assert model.confidence_head.proj.bias is None
    assert model.confidence_head(torch.randn(3, small.HIDDEN), torch.randn(3, 6)).shape == (3,)
    rewrite(folder, {key: value for key, value in held.items() if "confidence" not in key})
    loaded = load_drafter(folder)
    assert loaded.model.confidence_head is None and not loaded.model.config.confidence
    assert "confidence head" in loaded.notes[0]


def test_an_unsaid_layout_is_noted(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    edit(folder, sample_from_anchor=None)
    assert "anchor first" in load_drafter(folder).notes[0]


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    held = tensors(folder)
    del held["layers.1.mlp.up_proj.weight"]
    held["midlayer.weight"] = torch.ones(2)
    held["fc.weight"] = torch.ones(3, 4)
    rewrite(folder, held)
    with pytest.raises(UnsupportedModel) as error:
        load_drafter(folder)
    text = str(error.value)
    assert "missing layers.1.mlp.up_proj.weight" in text and "not wanted midlayer.weight" in text
    assert "fc.weight is [3, 4] and should be [32, 96]" in text


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    rewrite(folder, tensors(folder) | {"fc.weight": torch.ones(32, 96, dtype=torch.int8)})
    with pytest.raises(UnsupportedModel, match=r"quantised \(I8: fc.weight\)"):
        load_drafter(folder)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    (folder / "mask_embedding.pt").write_bytes(b"not a pickle at all")
    with pytest.raises(UnsupportedModel, match=r"mask_embedding\.pt.*could run code"):
        load_drafter(folder)
    (folder / "mask_embedding.pt").unlink()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"only pickled ones \(pytorch_model.bin\)"):
        load_drafter(folder)


def test_d2t_must_rise(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", small.config(draft_vocab=23))
    rewrite(folder, tensors(folder) | {"d2t": torch.arange(23).flip(0) * 3})
    with pytest.raises(DamagedData, match="d2t"):
        load_drafter(folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_broken_config_is_one_sentence(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path / "d")
    (folder / "config.json").write_text(text)
    with pytest.raises(FiresteelError):
        load_drafter(folder)


def test_a_broken_weight_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    (folder / "model.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(DamagedData, match=r"model\.safetensors cannot be read"):
        load_drafter(folder)


@pytest.mark.parametrize("name", ["no/such/folder", "nothing", "./absent", ""])
def test_no_such_drafter(name: str) -> None:
    with pytest.raises(TargetNotFound, match="no drafter"):
        load_drafter(name)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(TargetNotFound, match=r"config\.json"):
        load_drafter(tmp_path)


MISMATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "width": ({"hidden_size": 64}, "features of width 32, and the target has width 64"),
    "vocabulary": ({"vocab_size": 5000}, "knows 61 tokens, and the target 5000"),
    "taps": ({"num_hidden_layers": 5}, r"layers \[1, 3, 4\], and the target has 5 layers, of which 0 to 3"),
    "mask": ({"vocab_size": 59}, "mask is token 59, and the target has an embedding table of 59 rows"),
}


@pytest.mark.parametrize(("changes", "text"), MISMATCHES.values(), ids=MISMATCHES)
def test_a_mismatched_pair_is_refused_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], text: str
) -> None:
    settings = small.config(vocab=64, draft_vocab=64) if "mask" in text else small.config()
    folder = write(tmp_path / "d", settings)
    monkeypatch.setattr(stored.StoredTensor, "read", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises(InvalidParameter, match=text):
        load_drafter(folder, target_config=target_config(**changes))


def test_a_hub_id_downloads_its_configuration_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mismatched pair costs a few kilobytes, and no repository hands us its code."""
    folder, asked = write(tmp_path / "d"), []

    def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(InvalidParameter):
        load_drafter("owner/drafter", target_config=target_config(hidden_size=64))
    assert asked == [("owner/drafter", ["*.json", "mask_embedding.pt"])]
    assert load_drafter("owner/drafter", target_config=target_config()).name == "owner/drafter"
    assert asked[-1] == ("owner/drafter", ["*.json", "*.safetensors", "mask_embedding.pt"])


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
        raise FileNotFoundError("offline\nand so on")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(TargetNotFound, match=r"cannot load drafter 'owner/drafter': offline$"):
        load_drafter("owner/drafter")


def test_padding_is_no_mismatch() -> None:
    settings = small.config(vocab=128, draft_vocab=128)
    check_pair(settings, target_config(vocab_size=100))
    with pytest.raises(InvalidParameter):
        check_pair(replace(settings, vocab=129, draft_vocab=129), target_config(vocab_size=100))


def test_a_target_too_small_to_lend(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", small.config(vocab=64, draft_vocab=64))
    with pytest.raises(InvalidParameter, match=r"no embed_tokens.weight, lm_head.weight of \[64, 32\] of its own"):
        load_drafter(folder, target_config=target_config())


def test_nothing_is_written_over(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    with pytest.raises(InvalidParameter, match="exists already"):
        write(folder)


def test_tensors_of_another_configuration_are_not_written(tmp_path: Path) -> None:
    held = small.model(small.config("dflash")).state_dict()
    with pytest.raises(InvalidParameter, match="missing confidence_head"):
        save_drafter(held, small.config("dspark"), tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_what_a_format_cannot_say_is_not_written(tmp_path: Path) -> None:
    causal_full = small.config("dflash", causal=(True, True))
    write(tmp_path / "d", causal_full)
    assert load_drafter(tmp_path / "d").model.config == causal_full
    with pytest.raises(InvalidParameter, match="cannot say causal"):
        write(tmp_path / "s", causal_full, format="speculators")
    with pytest.raises(InvalidParameter, match="cannot say causal"):
        write(tmp_path / "m", small.config("dflash", causal=(True, False)))
    with pytest.raises(InvalidParameter, match="did you mean 'deepspec'"):
        write(tmp_path / "x", format="deepspek")
    assert list(tmp_path.iterdir()) == [tmp_path / "d"]


def test_scales_survive_the_flat_format(tmp_path: Path) -> None:
    settings = small.config("dflash2", embedding_scale=2.0, output_multiplier=0.5, softcap=20.0)
    assert load_drafter(write(tmp_path / "d", settings)).model.config == settings
