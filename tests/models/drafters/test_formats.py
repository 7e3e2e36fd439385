"""config.json of every format, as its authors write it, and the keys that change what a drafter drafts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from firesteel.errors import FiresteelError, InvalidParameter, UnsupportedModel
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.formats import read_config
from firesteel.models.drafters.model import DrafterModel

# DeepSpec's config.json for Qwen3-4B: the target's, with its own keys set.
DEEPSPEC: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"],
    "model_type": "qwen3",
    "num_target_layers": 36,
    "num_hidden_layers": 5,
    "block_size": 7,
    "tie_word_embeddings": False,
    "layer_types": ["full_attention"] * 5,
    "mask_token_id": 151669,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "num_anchors": 512,
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "attention_bias": False,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 36,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
}

# z-lab's published DFlash 2 of Muse-Glimmer-30B.
DFLASH2: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "attention_bias": False,
    "is_causal": False,
    "dflash_config": {
        "block_size": 16,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "final_logit_softcapping": 20.0,
        "mask_token_id": 201818,
        "output_multiplier": 0.19611613513818404,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [1, 13, 25, 37, 49],
    },
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "layer_types": ["sliding_attention"] * 5,
    "max_position_embeddings": 131072,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 52,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    "sliding_window": 2048,
    "use_sliding_window": True,
    "vocab_size": 202048,
}

_OWN = ("architectures", "block_size", "mask_token_id", "target_layer_ids", "num_target_layers")
_DSPARK = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
BACKBONE = {key: value for key, value in DEEPSPEC.items() if key not in _OWN + _DSPARK}

DFLASH: dict[str, Any] = BACKBONE | {
    "architectures": ["DFlashDraftModel"],
    "num_target_layers": 36,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}

SPECFORGE: dict[str, Any] = BACKBONE | {
    "architectures": ["DSparkDraftModel"],
    "model_type": "dspark",
    "block_size": 8,
    "dflash_config": {
        "projector_type": "dspark",
        "attention_mode": "gqa",
        "markov_rank": 128,
        "markov_head_type": "gated",
        "enable_confidence_head": False,
        "mask_token_id": 151669,
        "target_layer_ids": [1, 9, 17, 25, 33],
    },
}

# DeepSpec's for Gemma 4 12B: the target's text configuration, with the same keys set.
GEMMA4: dict[str, Any] = {key: DEEPSPEC[key] for key in ("block_size", *_DSPARK)} | {
    "architectures": ["Gemma4DSparkModel"],
    "model_type": "gemma4_text",
    "attention_k_eq_v": True,
    "enable_moe_block": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3840,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 15360,
    "layer_types": ["full_attention"] * 5,
    "mask_token_id": 4,
    "max_position_embeddings": 262144,
    "num_attention_heads": 16,
    "num_global_key_value_heads": 1,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 48,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "target_layer_ids": [5, 17, 29, 41, 46],
    "vocab_size": 262144,
}

SPECULATORS: dict[str, Any] = {
    "architectures": ["DSparkSpeculator"],
    "speculators_model_type": "dspark",
    "speculators_version": "0.9.0",
    "model_type": "speculator_model",
    "transformer_layer_config": BACKBONE,
    "draft_vocab_size": 32000,
    "block_size": 8,
    "target_hidden_size": None,
    "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34],
    "mask_token_id": 151669,
    "sliding_window_non_causal": False,
    "sample_from_anchor": True,
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "speculators_config": {"verifier": {"name_or_path": "Qwen/Qwen3-4B", "architectures": ["Qwen3ForCausalLM"]}},
}


def read(raw: dict[str, Any], **changes: Any) -> DrafterConfig:
    return read_config(raw | changes).config


def nested(raw: dict[str, Any], table: str = "dflash_config", **changes: Any) -> dict[str, Any]:
    return raw | {table: raw[table] | changes}


def without(raw: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in names}


SLIDING = {
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 512,
    "use_sliding_window": True,
}


def test_deepspec() -> None:
    config = read(DEEPSPEC)
    assert (config.kind, config.anchor_first, config.block_size, config.drafts) == ("dspark", True, 7, 7)
    assert config.target_layers == (1, 9, 17, 25, 33) and config.target_hidden == config.hidden == 2560
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (5, 32, 8, 128)
    assert config.rope == {"rope_type": "default", "rope_theta": 1e6}
    assert (config.markov_rank, config.markov_kind, config.confidence, config.confidence_markov) == (
        256,
        "vanilla",
        True,
        True,
    )
    assert config.causal == (False,) * 5 and config.windows == (None,) * 5
    assert not config.reduced


def test_deepspec_of_gemma4() -> None:
    config = read(GEMMA4)
    assert (config.family, config.values_from_keys, config.anchor_first) == ("gemma4", True, True)
    assert (config.head_dim, config.kv_heads, config.softcap) == (512, 1, 30.0)
    assert config.embedding_scale == 3840**0.5
    assert config.rope == {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    assert config.windows == (None,) * 5 and config.causal == (False,) * 5
    apart = read(GEMMA4, attention_k_eq_v=False)
    assert (apart.values_from_keys, apart.kv_heads) == (False, 8)


def test_deepspec_dflash_is_anchor_first() -> None:
    """Rank 0 is called dflash and has DSpark's layout: telling the layout by the name costs nearly every token."""
    config = read(DEEPSPEC, markov_rank=0, enable_confidence_head=False)
    assert (config.kind, config.anchor_first, config.drafts) == ("dflash", True, 7)


def test_dflash_is_in_place_with_blocks_of_16() -> None:
    config = read(DFLASH)
    assert (config.kind, config.anchor_first, config.block_size, config.drafts) == ("dflash", False, 16, 15)
    assert read(DFLASH, block_size=10).block_size == 10
    assert read(nested(DFLASH, block_size=8), block_size=10).block_size == 8


def test_dflash2() -> None:
    config = read(DFLASH2)
    assert (config.kind, config.anchor_first, config.drafts) == ("dflash2", False, 15)
    assert (config.conv_kernel, config.conv_group, config.selector_rank, config.selector_top) == (2, 16, 256, 16)
    assert config.output_multiplier == pytest.approx(1 / 26**0.5) and config.softcap == 20.0
    assert config.causal == (False,) * 5 and config.windows == (2048,) * 5
    assert config.target_layers == (1, 13, 25, 37, 49)


def shapes(raw: dict[str, Any]) -> dict[str, list[int]]:
    with torch.device("meta"):
        tensors = DrafterModel(read(raw)).state_dict()
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def test_tensors_of_the_published_dflash2() -> None:
    """Every name and shape in the header of z-lab's file for Muse-Glimmer-30B."""
    layer = {
        "input_layernorm.weight": [6656],
        "post_attention_layernorm.weight": [6656],
        "self_attn.q_proj.weight": [4096, 6656],
        "self_attn.k_proj.weight": [1024, 6656],
        "self_attn.v_proj.weight": [1024, 6656],
        "self_attn.o_proj.weight": [6656, 4096],
        "self_attn.q_norm.weight": [128],
        "self_attn.k_norm.weight": [128],
        "mlp.gate_proj.weight": [19968, 6656],
        "mlp.up_proj.weight": [19968, 6656],
        "mlp.down_proj.weight": [6656, 19968],
        "attention_conv.base_kernel": [2, 2, 6656],
        "attention_conv.kernel_projection.weight": [1664, 6656],
        "mlp_conv.base_kernel": [2, 2, 6656],
        "mlp_conv.kernel_projection.weight": [1664, 6656],
    }
    assert shapes(DFLASH2) == {
        "fc.weight": [6656, 33280],
        "hidden_norm.weight": [6656],
        "norm.weight": [6656],
        "candidate_selector.predecessor_codebook": [202048, 256],
        "candidate_selector.successor_codebook": [202048, 256],
        "candidate_selector.hidden_projection.weight": [256, 6656],
        **{f"layers.{index}.{name}": shape for index in range(5) for name, shape in layer.items()},
    }


def test_tensors_of_deepspec_for_qwen3_4b() -> None:
    found = shapes(DEEPSPEC)
    assert len(found) == 3 + 5 * 11 + 4
    assert found["fc.weight"] == [2560, 12800]
    assert found["markov_head.markov_w1.weight"] == found["markov_head.markov_w2.weight"] == [151936, 256]
    assert found["confidence_head.proj.weight"] == [1, 2816] and found["confidence_head.proj.bias"] == [1]


def test_specforge_nests_its_heads() -> None:
    config = read(SPECFORGE)
    assert (config.kind, config.markov_rank, config.markov_kind, config.confidence) == ("dspark", 128, "gated", False)
    assert config.anchor_first


def test_speculators_counts_taps_from_one() -> None:
    config = read(SPECULATORS)
    assert config.target_layers == read(DEEPSPEC).target_layers
    assert config.reduced and config.draft_vocab == 32000 and config.vocab == 151936
    assert config.target == "Qwen/Qwen3-4B"
    assert config.anchor_first


@pytest.mark.parametrize(
    ("layers", "taps"),
    [(36, (1, 9, 17, 25, 33)), (40, (1, 10, 19, 28, 37)), (52, (1, 13, 25, 37, 49))],
)
def test_default_taps(layers: int, taps: tuple[int, ...]) -> None:
    raw = without(DFLASH, "dflash_config") | {"mask_token_id": 1, "num_target_layers": layers}
    read_it = read_config(raw)
    assert read_it.config.target_layers == taps
    assert "z-lab's default" in " ".join(read_it.notes)
    assert read(raw, num_hidden_layers=1, layer_types=None).target_layers == (layers // 2,)


@pytest.mark.parametrize(
    ("raw", "anchor_first"),
    [(DEEPSPEC, True), (SPECFORGE, True), (DFLASH, False), (DFLASH2, False), (SPECULATORS, False)],
)
def test_an_unsaid_layout_is_decided_and_told(raw: dict[str, Any], anchor_first: bool) -> None:
    found = read_config(without(raw, "sample_from_anchor"))
    assert found.config.anchor_first is anchor_first
    assert ("anchor first" if anchor_first else "in place") in found.notes[0]
    for said in (True, False):
        told = read_config(raw | {"sample_from_anchor": said})
        assert told.config.anchor_first is said and told.notes == ()


def test_direction_and_window_of_each_layer() -> None:
    sliding = (True, False, True, False, True)
    config = read(DFLASH, **SLIDING)
    assert config.causal == sliding
    assert config.windows == (512, None, 512, None, 512)


def test_one_word_for_all_layers_beats_their_types() -> None:
    """vLLM: top-level is_causal, then dflash_config.causal, then each layer's type."""
    assert read(DFLASH, **SLIDING, is_causal=False).causal == (False,) * 5
    assert read(nested(DFLASH, causal=True), **SLIDING).causal == (True,) * 5
    assert read(nested(DFLASH, causal=True), **SLIDING, is_causal=False).causal == (False,) * 5


def test_swa_keys() -> None:
    config = read(nested(DFLASH, use_swa=True, swa_window_size=64), sliding_window=512)
    assert config.windows == (64,) * 5 and config.causal == (True,) * 5
    assert read(nested(DFLASH, swa_window_size=64), **SLIDING).windows[0] == 64


def test_a_window_out_of_use_is_told() -> None:
    found = read_config(DFLASH | SLIDING | {"use_sliding_window": False})
    assert found.config.windows == (None,) * 5
    assert "no window is in use" in " ".join(found.notes)


def test_speculators_full_layers_see_their_whole_block() -> None:
    """P9: sliding_window_non_causal is about sliding layers, and must not turn full ones causal."""
    raw = nested(SPECULATORS, "transformer_layer_config", **SLIDING)
    assert read(raw).causal == (True, False, True, False, True)
    assert read(raw, sliding_window_non_causal=True).causal == (False,) * 5
    second = without(raw, "sliding_window_non_causal") | {
        "speculators_model_type": "dflash2",
        "draft_vocab_size": 151936,
    }
    assert read(second).causal == (False,) * 5


def test_mask_lookup_order() -> None:
    raw = without(DEEPSPEC, "mask_token_id") | {"ptd_token_id": 4, "pard_token": 3, "dspark_noise_token_id": 2}
    assert read(raw).mask_token_id == 2
    assert read(raw, mask_token_id=1).mask_token_id == 1
    assert read(raw | {"dflash_config": {"mask_token_id": 5}}, mask_token_id=1).mask_token_id == 5
    with pytest.raises(InvalidParameter, match="mask_token_id"):
        read(without(DEEPSPEC, "mask_token_id"))


def test_rope_lookup_order() -> None:
    assert read(DEEPSPEC, rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_theta=5.0).rope["rope_theta"] == 1e6
    raw = without(DEEPSPEC, "rope_parameters")
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert read(raw, rope_scaling=yarn, rope_theta=5e5).rope == {
        "rope_type": "yarn",
        "rope_theta": 5e5,
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
    }
    assert read(raw, rope_theta=3e4).rope == {"rope_type": "default", "rope_theta": 3e4}
    unsaid = read_config(raw)
    assert unsaid.config.rope["rope_theta"] == 1e6 and "rope_theta" in unsaid.notes[-1]
    temporal = read(DEEPSPEC, rope_parameters={"rope_type": "mrope", "mrope_section": [1, 2], "rope_theta": 7.0})
    assert temporal.rope == {"rope_type": "default", "rope_theta": 7.0}


def test_padded_draft_vocabulary_is_not_a_reduced_one() -> None:
    assert not read(DEEPSPEC, draft_vocab_size=152064).reduced


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "laguna": (DFLASH | {"architectures": ["DFlashLagunaForCausalLM"]}, "'DFlashLagunaForCausalLM'.*Gemma4DSparkModel"),
    "gemma 4's experts": (GEMMA4 | {"enable_moe_block": True}, "enable_moe_block = True"),
    "gemma 4's per-layer inputs": (GEMMA4 | {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input = 256"),
    "domino": (SPECFORGE | {"architectures": ["DominoDraftModel"]}, "'DominoDraftModel'"),
    "domino head": (nested(SPECFORGE, projector_type="domino"), "projector_type = 'domino'"),
    "eagle": (SPECULATORS | {"speculators_model_type": "eagle3"}, "'eagle3'"),
    "mtp": (SPECULATORS | {"speculators_model_type": "mtp"}, "'mtp'"),
    "deepseek": (SPECFORGE | {"model_type": "deepseek_v4"}, "model_type = 'deepseek_v4'"),
    "sinks": (nested(DFLASH, attention_sink_bias=True), "attention_sink_bias = True"),
    "value scale": (nested(DFLASH, attention_value_scale=0.5), "attention_value_scale = 0.5"),
    "partial rotary": (DFLASH | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "partial rotary inside": (
        DFLASH | {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1.0}},
        "rotate part",
    ),
    "interleaved": (DFLASH | {"is_neox_style": False}, "is_neox_style = False"),
    "gelu": (DFLASH | {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "logit scale": (DFLASH | {"logit_scale": 0.5}, "logit_scale = 0.5"),
    "latent attention": (nested(SPECFORGE, attention_mode="mla"), "attention_mode = 'mla'"),
    "quantised": (DFLASH | {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    "long rope": (DFLASH | {"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
    "rope per layer type": (
        DFLASH | {"rope_parameters": {"full_attention": {}, "sliding_attention": {}}},
        "one rotary",
    ),
    "layer type": (DFLASH | {"layer_types": ["sliding_atention"] * 5}, "did you mean 'sliding_attention'"),
    "markov": (DEEPSPEC | {"markov_head_type": "gatd"}, "did you mean 'gated'"),
    "embedding tap": (DEEPSPEC | {"target_layer_ids": [-1, 3]}, r"\[-1, 3\]"),
    "speculators embedding tap": (SPECULATORS | {"aux_hidden_state_layer_ids": [0, 3]}, r"\[-1, 2\]"),
    "reduced dflash2": (DFLASH2 | {"draft_vocab_size": 100}, "whole vocabulary"),
}


@pytest.mark.parametrize(("raw", "text"), REFUSED.values(), ids=REFUSED)
def test_what_would_change_every_draft_is_refused(raw: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedModel, match=text):
        read_config(raw)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({}, "'none'"),
    "no block": (without(DEEPSPEC, "block_size"), "says no block_size"),
    "no rank": (without(DEEPSPEC, "markov_rank"), "says no markov_rank"),
    "no width": (without(DEEPSPEC, "hidden_size"), "says no hidden_size"),
    "no taps": (without(SPECULATORS, "aux_hidden_state_layer_ids"), "aux_hidden_state_layer_ids"),
    "word for a number": (DEEPSPEC | {"hidden_size": "wide"}, "hidden_size is not a whole number: 'wide'"),
    "number for a flag": (DEEPSPEC | {"sample_from_anchor": 1}, "sample_from_anchor is not true or false: 1"),
    "flag for a number": (DEEPSPEC | {"block_size": True}, "block_size is not a whole number: True"),
    "word for a direction": (DFLASH | {"is_causal": "no"}, "is_causal is not true or false: 'no'"),
    "list for a table": (DFLASH | {"dflash_config": [1]}, "dflash_config is not a table"),
    "too few types": (DFLASH | {"layer_types": ["full_attention"]}, "layer_types do not name its 5 layers"),
    "confidence of nothing": (DEEPSPEC | {"markov_rank": 0}, "markov_rank is 0"),
    "yarn without factor": (DFLASH | {"rope_parameters": {"rope_type": "yarn"}}, "needs factor"),
    "window of a word": (DFLASH | SLIDING | {"sliding_window": "far"}, "sliding_window"),
    "mask beyond the table": (DEEPSPEC | {"mask_token_id": 151936}, "151936 is not below 151936"),
}


@pytest.mark.parametrize(("raw", "text"), WRONG.values(), ids=WRONG)
def test_wrong_keys_are_one_sentence(raw: dict[str, Any], text: str) -> None:
    with pytest.raises(FiresteelError, match=text) as error:
        read_config(raw)
    assert "\n" not in str(error.value)
