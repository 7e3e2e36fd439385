"""From a `DrafterConfig` to the config.json of a format: the inverse of `firesteel.models.drafters.formats`.

Every key on whose absence engines disagree is written, `sample_from_anchor` first of all.
"""

from __future__ import annotations

from typing import Any, Literal

from firesteel.errors import InvalidParameter, unknown
from firesteel.models.drafters.config import DrafterConfig

Format = Literal["deepspec", "speculators"]


def config_json(config: DrafterConfig, format: Format) -> dict[str, Any]:
    """config.json of a drafter: "deepspec" is the flat family (DeepSpec's keys; z-lab's for kinds that DeepSpec lacks).

    Raises:
        InvalidParameter: an unknown format, or a drafter that the format has no words for.
    """
    if format == "deepspec":
        return _flat(config)
    if format == "speculators":
        return _speculators(config)
    raise unknown("drafter format", format, ("deepspec", "speculators"))


def _flat(config: DrafterConfig) -> dict[str, Any]:
    if config.family != "qwen3":
        raise InvalidParameter(f"only drafters with Qwen3's layers are written, not {config.family!r}")
    sliding = _sliding(config)
    own = _heads(config) | {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layers),
        "block_size": config.block_size,
    }
    scales = {
        "input_embedding_scale": (config.embedding_scale, 1.0),
        "output_multiplier": (config.output_multiplier, 1.0),
        "final_logit_softcapping": (config.softcap, None),
        "target_hidden_size": (config.target_hidden, config.hidden),
    }
    own |= {name: value for name, (value, usual) in scales.items() if value != usual}
    if config.reduced or config.draft_vocab != config.vocab:
        own["draft_vocab_size"] = config.draft_vocab
    # sliding layers are causal and full ones are not, unless one word says otherwise for all of them
    if config.causal != sliding:
        if not config.uniform:
            raise InvalidParameter(f"DeepSpec's format cannot say causal = {config.causal} of layers sliding {sliding}")
        own["is_causal"] = config.causal[0]
    if config.target is not None:
        own["target_name_or_path"] = config.target
    if config.kind == "dspark" or (config.kind == "dflash" and config.anchor_first):
        return {"architectures": ["Qwen3DSparkModel"]} | _layers(config) | own
    architecture = "DFlash2DraftModel" if config.kind == "dflash2" else "DFlashDraftModel"
    top = {name: own.pop(name) for name in _TOP_LEVEL if name in own}
    return {"architectures": [architecture]} | _layers(config) | top | {"dflash_config": own}


# What z-lab's code, vLLM or we ourselves look for outside of dflash_config.
_TOP_LEVEL = ("sample_from_anchor", "is_causal", "draft_vocab_size", "target_hidden_size", "target_name_or_path")


def _speculators(config: DrafterConfig) -> dict[str, Any]:
    if config.family != "qwen3":
        raise InvalidParameter(f"speculators' format has Qwen3's layers only, not {config.family!r}")
    sliding = _sliding(config)
    causal = {value for value, is_sliding in zip(config.causal, sliding, strict=True) if is_sliding}
    if (
        any(value and not is_sliding for value, is_sliding in zip(config.causal, sliding, strict=True))
        or len(causal) > 1
    ):
        raise InvalidParameter(f"speculators' format cannot say causal = {config.causal} of layers sliding {sliding}")
    if config.embedding_scale != 1.0 or config.output_multiplier != 1.0 or config.softcap is not None:
        raise InvalidParameter("speculators' format cannot say that a drafter scales its input or its logits")
    architecture = {"dspark": "DSparkSpeculator", "dflash": "DFlashSpeculator", "dflash2": "DFlash2DraftModel"}
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": config.drafts,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": [architecture[config.kind]],
        "speculators_model_type": config.kind,
        "speculators_version": "0.9.0",
        "model_type": "speculator_model",
        "transformer_layer_config": _layers(config),
        "draft_vocab_size": config.draft_vocab,
        "block_size": config.block_size,
        "target_hidden_size": None if config.target_hidden == config.hidden else config.target_hidden,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in config.target_layers],
        "mask_token_id": config.mask_token_id,
        "sliding_window_non_causal": True not in causal,
        **_heads(config),
        "speculators_config": {
            "algorithm": config.kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": config.target, "architectures": []},
        },
    }


def _heads(config: DrafterConfig) -> dict[str, Any]:
    """The layout of a block's rows and the heads, under the names that both families share."""
    said: dict[str, Any] = {"sample_from_anchor": config.anchor_first}
    if config.kind == "dspark" or (config.kind == "dflash" and config.anchor_first):
        said |= {"markov_rank": config.markov_rank, "enable_confidence_head": config.confidence}
        if config.markov_rank:
            said["markov_head_type"] = config.markov_kind
        if config.confidence:
            said["confidence_head_with_markov"] = config.confidence_markov
    if config.kind == "dflash2":
        said |= {
            "conv_kernel_size": config.conv_kernel,
            "conv_group_size": config.conv_group,
            "selector_rank": config.selector_rank,
            "selector_top_k": config.selector_top,
        }
    return said


def _layers(config: DrafterConfig) -> dict[str, Any]:
    """The backbone in Qwen3's words."""
    windows = {window for window in config.windows if window is not None}
    if len(windows) > 1:
        raise InvalidParameter(f"the formats have one sliding window for all layers, not {sorted(windows)}")
    return {
        "model_type": "qwen3",
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.eps,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_context,
        "rope_parameters": dict(config.rope),
        "rope_theta": config.rope["rope_theta"],  # where older readers look
        "attention_bias": config.attention_bias,
        "layer_types": ["sliding_attention" if is_sliding else "full_attention" for is_sliding in _sliding(config)],
        "sliding_window": windows.pop() if windows else None,
        "use_sliding_window": any(_sliding(config)),
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def _sliding(config: DrafterConfig) -> tuple[bool, ...]:
    return tuple(window is not None for window in config.windows)
