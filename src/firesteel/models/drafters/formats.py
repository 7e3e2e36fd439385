"""From a drafter's config.json to `DrafterConfig`, for every format that block drafters are published in.

    DeepSpec      Qwen3DSparkModel, Gemma4DSparkModel  flat; rank 0 is a DFlash backbone in DSpark's layout
    z-lab         DFlashDraftModel, DFlash2DraftModel  flat, or nested in `dflash_config`
    SpecForge     DSparkDraftModel                     nested in `dflash_config`
    speculators   dflash, dflash2, dspark              backbone in `transformer_layer_config`; tap ids one higher

The formats differ in defaults more than in names. Where engines disagree on what a missing key means, the choice is
returned as a note, so that a person can see it. A key that would change every draft and is not implemented is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from firesteel.errors import InvalidParameter, UnsupportedModel, unknown
from firesteel.models.drafters.config import DrafterConfig, Kind
from firesteel.models.drafters.keys import (
    Keys,
    anchor_first_of,
    layer_types,
    refuse_unsupported,
    rope_parameters,
    table,
)

FLAT: dict[str, Kind] = {
    "DFlash2DraftModel": "dflash2",
    "DFlashDraftModel": "dflash",
    "DSparkDraftModel": "dspark",
    "Qwen3DSparkModel": "dspark",
}
READ = (*FLAT, "Gemma4DSparkModel")
SPECULATORS: tuple[Kind, ...] = ("dflash", "dflash2", "dspark")

# transformers' default for Gemma 4's full attention.
_GEMMA4_ROPE = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
# Where vLLM looks for the mask, in this order; dflash_config comes before the top level.
_MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")


@dataclass(frozen=True)
class ReadConfig:
    """A configuration, and in words what had to be decided to read it."""

    config: DrafterConfig
    notes: tuple[str, ...]


def read_config(raw: Mapping[str, Any]) -> ReadConfig:
    """The configuration that a drafter's config.json describes.

    Raises:
        UnsupportedModel: an architecture or a feature that is not implemented; names the key and its value.
        InvalidParameter: a key is missing or has a value of the wrong kind.
    """
    if "speculators_model_type" in raw:
        return _read_speculators(raw)
    if (raw.get("architectures") or [None])[0] == "Gemma4DSparkModel":
        return _read_gemma4(raw)
    return _read_flat(raw)


def _read_flat(raw: Mapping[str, Any]) -> ReadConfig:
    """DeepSpec, z-lab and SpecForge: like z-lab's code, every key of `dflash_config` comes before the top level's."""
    architecture = (raw.get("architectures") or ["none"])[0]
    if architecture not in FLAT:
        raise UnsupportedModel(f"drafters of the architecture {architecture!r} cannot be read, only {', '.join(READ)}")
    nested = table(raw, "dflash_config")
    keys, kind, notes = Keys(nested, raw), FLAT[architecture], []
    trained = "as DeepSpec trains them" if kind == "dspark" else "as z-lab's code reads them"
    anchor_first = anchor_first_of(keys, kind == "dspark", trained, notes)
    layers = keys.whole("num_hidden_layers")
    types, window = layer_types(keys, layers, notes)
    forced = raw.get("is_causal") if raw.get("is_causal") is not None else nested.get("causal")
    if not isinstance(forced, bool | None):
        raise InvalidParameter(f"the drafter's is_causal is not true or false: {forced!r}")
    taps = keys.get("target_layer_ids")
    if taps is None:
        taps = default_taps(keys.whole("num_target_layers"), layers)
        notes.append(f"config.json has no target_layer_ids: taken as {taps}, z-lab's default")
    return _configured(
        kind,
        backbone=keys,
        heads=keys,
        anchor_first=anchor_first,
        block_size=keys.whole("block_size", None if kind == "dspark" else 16),
        taps=taps,
        # Precedence of vLLM: one word for all layers, else sliding layers are causal and full ones are not (z-lab).
        causal=tuple(name == "sliding_attention" if forced is None else forced for name in types),
        windows=tuple(window if name == "sliding_attention" else None for name in types),
        target=raw.get("target_name_or_path"),
        notes=notes,
    )


def _read_gemma4(raw: Mapping[str, Any]) -> ReadConfig:
    """DeepSpec's drafters with Gemma 4's layers: said in Qwen3's words, and marked.

    Only full attention is in them, whose heads have a size and a rotary embedding of their own. The embedding is scaled
    by sqrt(H); the logits are capped before the Markov bias is added.
    """
    said = {"hidden_activation": "gelu_pytorch_tanh", "enable_moe_block": False, "hidden_size_per_layer_input": 0}
    for name, only in said.items():
        if raw.get(name, only) != only:
            raise UnsupportedModel(f"Gemma 4 drafters with {name} = {raw[name]!r} are not supported")
    keys = Keys(raw)
    shared = keys.flag("attention_k_eq_v", False)
    ropes = table(raw, "rope_parameters")
    qwen3 = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "head_dim": keys.whole("global_head_dim", 512),
        "num_key_value_heads": keys.whole("num_global_key_value_heads" if shared else "num_key_value_heads"),
        "rope_parameters": ropes.get("full_attention", ropes or _GEMMA4_ROPE),
        "input_embedding_scale": keys.whole("hidden_size") ** 0.5,
        "sliding_window": None,
    }
    read = _read_flat({**raw, **qwen3})
    return replace(read, config=replace(read.config, family="gemma4", values_from_keys=shared))


def _read_speculators(raw: Mapping[str, Any]) -> ReadConfig:
    """speculators' own format. Full layers always see their whole block; only sliding ones have a direction."""
    kind = raw["speculators_model_type"]
    if kind not in SPECULATORS:
        raise UnsupportedModel(
            f"drafters with speculators_model_type = {kind!r} cannot be read, only {', '.join(SPECULATORS)}"
        )
    backbone, heads, notes = Keys(table(raw, "transformer_layer_config")), Keys(raw), []
    # speculators' own class says true for dspark, but it always writes the key: a file without it is older.
    anchor_first = anchor_first_of(heads, False, "as vLLM and llama.cpp read speculators' files", notes)
    types, window = layer_types(backbone, backbone.whole("num_hidden_layers"), notes)
    sliding = tuple(name == "sliding_attention" and window is not None for name in types)
    causal = not heads.flag("sliding_window_non_causal", kind == "dflash2")
    taps = heads.get("aux_hidden_state_layer_ids")
    if taps is None:
        raise InvalidParameter("the drafter's config.json says no aux_hidden_state_layer_ids")
    verifier = table(table(raw, "speculators_config"), "verifier")
    return _configured(
        kind,
        backbone=backbone,
        heads=heads,
        anchor_first=anchor_first,
        block_size=heads.whole("block_size", 8),
        taps=[i - 1 if isinstance(i, int) else i for i in taps],
        causal=tuple(causal and is_sliding for is_sliding in sliding),
        windows=tuple(window if is_sliding else None for is_sliding in sliding),
        target=verifier.get("name_or_path"),
        notes=notes,
    )


def _configured(
    kind: Kind,
    *,
    backbone: Keys,
    heads: Keys,
    anchor_first: bool,
    block_size: int,
    taps: list[int],
    causal: tuple[bool, ...],
    windows: tuple[int | None, ...],
    target: str | None,
    notes: list[str],
) -> ReadConfig:
    """What all formats have in common."""
    refuse_unsupported(heads, backbone)
    if not isinstance(taps, list) or not all(isinstance(i, int) and i >= 0 for i in taps):
        raise UnsupportedModel(f"a drafter taps outputs of target layers, counted from 0; this one names {taps!r}")
    hidden, count = backbone.whole("hidden_size"), backbone.whole("num_attention_heads")
    vocab = backbone.whole("vocab_size")
    draft_vocab = heads.whole("draft_vocab_size", vocab)
    rank = heads.whole("markov_rank", 256 if heads is not backbone else None) if kind == "dspark" else 0
    confidence = kind == "dspark" and heads.flag("enable_confidence_head", True)
    confidence_markov = confidence and heads.flag("confidence_head_with_markov", rank > 0)
    if confidence_markov and not rank:
        raise InvalidParameter("confidence_head_with_markov needs a Markov head, and markov_rank is 0")
    markov_kind = heads.get("markov_head_type", "vanilla")
    if markov_kind not in ("vanilla", "gated", "rnn"):
        raise UnsupportedModel(str(unknown("markov_head_type", str(markov_kind), ("vanilla", "gated", "rnn"))))
    second = kind == "dflash2"
    if second and draft_vocab < vocab:
        raise UnsupportedModel(f"DFlash 2 needs the whole vocabulary: {draft_vocab} of {vocab} tokens are not enough")
    mask = next((heads.whole(name) for name in _MASKS if heads.get(name) is not None), None)
    if mask is None:
        raise InvalidParameter(f"the drafter's config.json says no mask_token_id (nor {', '.join(_MASKS[1:])})")
    softcap = heads.number("final_logit_softcapping", 0.0)
    max_context = backbone.get("max_position_embeddings")
    return ReadConfig(
        DrafterConfig(
            kind=kind if kind != "dspark" or rank or confidence else "dflash",
            anchor_first=anchor_first,
            block_size=block_size,
            mask_token_id=mask,
            target_layers=tuple(taps),
            target_hidden=heads.whole("target_hidden_size", hidden),
            hidden=hidden,
            layers=len(causal),
            heads=count,
            kv_heads=backbone.whole("num_key_value_heads", count),
            head_dim=backbone.whole("head_dim", hidden // count if backbone.get("model_type") == "llama" else 128),
            intermediate=backbone.whole("intermediate_size"),
            eps=backbone.number("rms_norm_eps", 1e-6),
            vocab=vocab,
            draft_vocab=draft_vocab,
            rope=rope_parameters(backbone, notes),
            attention_bias=backbone.flag("attention_bias", False),
            causal=causal,
            windows=windows,
            max_context=max_context,
            markov_rank=rank,
            markov_kind=markov_kind,
            confidence=confidence,
            confidence_markov=confidence_markov,
            conv_kernel=heads.whole("conv_kernel_size", 2) if second else 0,
            conv_group=heads.whole("conv_group_size", 16),
            selector_rank=heads.whole("selector_rank", 256) if second else 0,
            selector_top=heads.whole("selector_top_k", 16),
            embedding_scale=heads.number("input_embedding_scale", 1.0),
            output_multiplier=heads.number("output_multiplier", 1.0),
            softcap=softcap if softcap > 0 else None,
            target=target,
        ),
        tuple(notes),
    )


def default_taps(target_layers: int, layers: int) -> list[int]:
    """z-lab's taps for files that name none: from the target's second layer to its third from last."""
    if layers == 1:
        return [target_layers // 2]
    return [round(1 + k * (target_layers - 4) / (layers - 1)) for k in range(layers)]
