"""Drafters written for other engines: names, shapes and keys as those engines' own code reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3Config

from firesteel.default_target import DEFAULT_TARGET
from firesteel.errors import InvalidParameter
from firesteel.models.drafters.checkpoint import load_drafter
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.export import ExportFormat, caveats, export_drafter
from firesteel.models.drafters.model import DrafterModel
from tests.models.drafters import small

TARGET = Qwen3Config(
    vocab_size=small.VOCAB, hidden_size=small.HIDDEN, num_hidden_layers=6, architectures=["Qwen3ForCausalLM"]
)
V, H, R, KEPT = small.VOCAB, small.HIDDEN, 6, 23
DRAFTERS: dict[str, DrafterConfig] = {
    "dflash": small.config("dflash"),
    "dflash reduced": small.config("dflash", draft_vocab=KEPT),
    "dflash anchor first": small.config("dflash", anchor_first=True),
    "dspark": small.config("dspark"),
    "dspark reduced": small.config("dspark", draft_vocab=KEPT),
    "dspark in place": small.config("dspark", anchor_first=False),
    "dspark without confidence": small.config("dspark", confidence=False, confidence_markov=False),
    "dspark plain confidence": small.config("dspark", confidence_markov=False),
    "dflash2": small.config("dflash2"),
    "sliding": small.config("dflash", windows=(7, 7), causal=(True, True)),
}

# What vLLM 0.32's qwen3_dspark.py makes room for, in the checkpoint's words and shapes.
LAYER = {
    "input_layernorm.weight": (H,),
    "post_attention_layernorm.weight": (H,),
    "self_attn.q_proj.weight": (48, H),
    "self_attn.k_proj.weight": (24, H),
    "self_attn.v_proj.weight": (24, H),
    "self_attn.o_proj.weight": (H, 48),
    "self_attn.q_norm.weight": (12,),
    "self_attn.k_norm.weight": (12,),
    "mlp.gate_proj.weight": (40, H),
    "mlp.up_proj.weight": (40, H),
    "mlp.down_proj.weight": (H, 40),
}
BACKBONE = {
    "fc.weight": (H, 3 * H),
    "hidden_norm.weight": (H,),
    "norm.weight": (H,),
    **{f"layers.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()},
}


def heads(draft_vocab: int, rank: int = R) -> dict[str, tuple[int, ...]]:
    return {
        "markov_head.markov_w1.weight": (V, rank),
        "markov_head.markov_w2.weight": (draft_vocab, rank),
        "confidence_head.proj.weight": (1, H + rank),
        "confidence_head.proj.bias": (1,),
    }


REDUCED = {"lm_head.weight": (KEPT, H), "d2t": (KEPT,), "t2d": (V,)}


def drafter(settings: DrafterConfig) -> DrafterModel:
    """A random one whose values bf16 holds exactly, with a target's tables lent."""
    model = small.model(settings).to(torch.bfloat16).float()
    model.lend(*(table.to(torch.bfloat16) for table in small.tables()))
    return model


def exported(folder: Path, settings: DrafterConfig, format: ExportFormat) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys and shapes of what is written."""
    export_drafter(drafter(settings), folder, format, target="owner/target", target_config=TARGET)
    tensors = load_file(folder / "model.safetensors")
    return json.loads((folder / "config.json").read_text()), {key: tuple(one.shape) for key, one in tensors.items()}


def conditional(model: DrafterModel) -> list[torch.Tensor]:
    """Logits of a few rows, one after another, given each a token before."""
    generator = torch.Generator().manual_seed(3)
    state, rows = None, []
    for token in (5, 17, 40):
        h = torch.randn(1, model.config.hidden, generator=generator)
        logits, state = model.conditional(model.logits(h), h, torch.tensor([token]), state)
        rows.append(logits)
    return rows


@pytest.mark.parametrize("format", ["deepspec", "speculators", "gguf"])
@pytest.mark.parametrize("settings", DRAFTERS.values(), ids=DRAFTERS)
def test_what_is_exported_drafts_as_before(tmp_path: Path, settings: DrafterConfig, format: ExportFormat) -> None:
    model = drafter(settings)
    said = export_drafter(model, tmp_path / "d", format, target="owner/target", target_config=TARGET)
    loaded = load_drafter(tmp_path / "d", target_config=TARGET)
    assert loaded.notes == ()
    assert loaded.model.config == said
    changed = {"kind", "markov_rank", "confidence_markov", "target"}
    same = {name: value for name, value in vars(settings).items() if name not in changed}
    assert same.items() <= vars(said).items()
    loaded.model.lend(*(table.to(torch.bfloat16) for table in small.tables()))
    assert all(map(torch.equal, conditional(loaded.model), conditional(model)))
    for name, tensor in model.state_dict().items():
        if name != "confidence_head.proj.weight":
            assert torch.equal(loaded.model.state_dict()[name], tensor)


@pytest.mark.parametrize("format", ["deepspec", "speculators", "gguf"])
def test_names_and_shapes_of_dspark(tmp_path: Path, format: ExportFormat) -> None:
    _, reduced = exported(tmp_path / "reduced", DRAFTERS["dspark reduced"], format)
    _, whole = exported(tmp_path / "whole", DRAFTERS["dspark"], format)
    tables = {"embed_tokens.weight": (V, H)} if format == "deepspec" else {}
    assert reduced == BACKBONE | heads(KEPT) | REDUCED | tables
    assert whole == BACKBONE | heads(V) | tables | ({"lm_head.weight": (V, H)} if tables else {})


def test_the_head_holds_the_kept_rows_of_the_targets(tmp_path: Path) -> None:
    exported(tmp_path / "d", DRAFTERS["dspark reduced"], "deepspec")
    written, (embed, head) = load_file(tmp_path / "d" / "model.safetensors"), small.tables()
    kept = written["d2t"] + torch.arange(KEPT)
    assert torch.equal(written["lm_head.weight"], head.to(torch.bfloat16)[kept])
    assert torch.equal(written["embed_tokens.weight"], embed.to(torch.bfloat16))
    assert torch.equal(written["t2d"].nonzero()[:, 0], kept)


def test_keys_of_deepspec(tmp_path: Path) -> None:
    said, _ = exported(tmp_path / "d", DRAFTERS["dspark reduced"], "deepspec")
    wanted = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "sample_from_anchor": True,
        "block_size": 5,
        "mask_token_id": V - 2,
        "target_layer_ids": [1, 3, 4],
        "num_target_layers": 6,
        "markov_rank": R,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "vocab_size": V,
        "draft_vocab_size": KEPT,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "target_name_or_path": "owner/target",
    }
    assert wanted.items() <= said.items()


def test_keys_of_speculators(tmp_path: Path) -> None:
    said, _ = exported(tmp_path / "d", DRAFTERS["dspark reduced"], "speculators")
    wanted = {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "sample_from_anchor": True,
        "block_size": 5,
        "mask_token_id": V - 2,
        "aux_hidden_state_layer_ids": [2, 4, 5],
        "markov_rank": R,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "draft_vocab_size": KEPT,
    }
    assert wanted.items() <= said.items()
    assert "model_type" not in said  # vLLM would ask transformers for it
    speculators = said["speculators_config"]
    assert speculators["verifier"] == {"name_or_path": "owner/target", "architectures": ["Qwen3ForCausalLM"]}
    assert speculators["proposal_methods"][0]["speculative_tokens"] == 5


def test_in_place_drafts_one_token_less_and_says_so(tmp_path: Path) -> None:
    flat, _ = exported(tmp_path / "flat", DRAFTERS["dspark in place"], "deepspec")
    nested, shapes = exported(tmp_path / "nested", DRAFTERS["dflash"], "deepspec")
    other, _ = exported(tmp_path / "other", DRAFTERS["dflash"], "speculators")
    assert flat["sample_from_anchor"] is nested["sample_from_anchor"] is other["sample_from_anchor"] is False
    assert nested["architectures"] == ["DFlashDraftModel"]
    assert nested["dflash_config"]["target_layer_ids"] == [1, 3, 4]
    assert shapes == BACKBONE
    assert other["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4


def test_dflash_in_dsparks_layout_gets_a_markov_head_that_adds_nothing(tmp_path: Path) -> None:
    """vLLM's dflash, SGLang's DSPARK and llama.cpp each refuse it without one."""
    said, shapes = exported(tmp_path / "d", DRAFTERS["dflash anchor first"], "deepspec")
    assert said["architectures"] == ["Qwen3DSparkModel"]
    assert said["markov_rank"] == shapes["markov_head.markov_w2.weight"][1] == 32
    assert said["enable_confidence_head"] is False
    assert not load_file(tmp_path / "d" / "model.safetensors")["markov_head.markov_w2.weight"].any()


def test_a_bundled_confidence_head_without_a_bias_gets_one(tmp_path: Path) -> None:
    model = drafter(DRAFTERS["dspark"])
    model.confidence_head.proj.bias = None
    export_drafter(model, tmp_path / "d", "deepspec", target="t", target_config=TARGET)
    assert not load_file(tmp_path / "d" / "model.safetensors")["confidence_head.proj.bias"].any()


def test_llama_cpp_gets_a_direction_and_markov_features(tmp_path: Path) -> None:
    said, shapes = exported(tmp_path / "d", DRAFTERS["dspark plain confidence"], "gguf")
    assert shapes["confidence_head.proj.weight"] == (1, H + R)
    assert not load_file(tmp_path / "d" / "model.safetensors")["confidence_head.proj.weight"][0, H:].any()
    assert said["confidence_head_with_markov"] is True
    assert said["is_causal"] is False
    causal, _ = exported(tmp_path / "causal", DRAFTERS["sliding"], "gguf")
    assert causal["is_causal"] is True
    assert causal["use_sliding_window"] is True


def test_nothing_is_rounded_before_llama_cpps_converter_rounds_it(tmp_path: Path) -> None:
    """A target's head need not be of bf16 values; one that was rounded made an fp32 file draft by other odds."""
    model, (embed, head) = small.model(DRAFTERS["dspark reduced"]), small.tables()
    model.lend(embed, head)
    export_drafter(model, tmp_path / "d", "gguf", target="t", target_config=TARGET)
    written = load_file(tmp_path / "d" / "model.safetensors")
    assert torch.equal(written["lm_head.weight"], head[written["d2t"] + torch.arange(KEPT)])
    assert torch.equal(written["fc.weight"], model.fc.weight)
    assert json.loads((tmp_path / "d" / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"markov_kind": "gated"}, "Markov head is gated"),
        ({"causal": (True, False), "windows": (7, None)}, "different directions"),
        ({"softcap": 20.0}, "scaled"),
    ],
)
def test_what_llama_cpp_cannot_run(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=f"llama.cpp.*{said}"):
        exported(tmp_path / "d", small.config("dspark", **changes), "gguf")
    assert not list(tmp_path.iterdir())


def test_refusals(tmp_path: Path) -> None:
    model = drafter(DRAFTERS["dspark"])
    with pytest.raises(InvalidParameter, match="did you mean 'speculators'"):
        export_drafter(model, tmp_path / "d", "speculator", target="t", target_config=TARGET)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="exists already"):
        export_drafter(model, tmp_path, "deepspec", target="t", target_config=TARGET)
    other = Qwen3Config(vocab_size=V, hidden_size=H, num_hidden_layers=5)
    with pytest.raises(InvalidParameter, match="not one of this target"):
        export_drafter(model, tmp_path / "d", "deepspec", target="t", target_config=other)


def test_our_name_of_the_default_target_is_nobody_elses(tmp_path: Path) -> None:
    model = drafter(replace(DRAFTERS["dspark"], target=DEFAULT_TARGET))
    said = export_drafter(model, tmp_path / "d", "speculators", target=DEFAULT_TARGET, target_config=TARGET)
    assert said.target == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_caveats_name_what_vllm_reads_otherwise() -> None:
    mixed = {"windows": (7, None), "causal": (True, False)}
    assert "gated" in caveats(small.config("dspark", markov_kind="gated"), "deepspec")[0]
    assert "for causal" in caveats(small.config("dspark", windows=(7, 7)), "speculators")[0]
    assert "all layers" in caveats(small.config("dflash", **mixed), "speculators")[0]
    assert caveats(small.config("dflash", **mixed), "deepspec") == ()
    assert caveats(DRAFTERS["dspark reduced"], "speculators") == ()
