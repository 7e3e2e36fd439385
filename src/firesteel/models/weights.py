"""Weights for the compact decoder: from a transformers model in memory, or straight from safetensors files.

The second way never imports transformers' model code, which takes longer than reading a small model's weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor

from firesteel.errors import UnsupportedModel
from firesteel.models.compact import CompactDecoder, Layer, Linear, RMSNorm, Shape, supports

if TYPE_CHECKING:
    from firesteel.models.loading import LoadedTarget


def from_transformers(model: Any, *, taps: Sequence[int] = ()) -> CompactDecoder:
    """The compact decoder of a transformers causal language model; embeddings and norms are shared, not copied.

    `taps` are the layers (0-based) whose outputs the forward returns as features.
    Raises UnsupportedModel where `supports(model.config)` says why not, or where a tap is no layer.
    """
    if reason := supports(model.config):
        raise UnsupportedModel(reason)
    rope = model.model.rotary_emb
    return _assemble(model.config, model.state_dict(), rope.inv_freq, float(rope.attention_scaling), taps)


def in_files(folder: str, config: Any) -> str | None:
    """None when `from_folder` can read the decoder of `config` from this folder, else a sentence saying why not."""
    if reason := supports(config):
        return reason
    if not sorted(Path(folder).glob("*.safetensors")):
        return f"{folder} holds no safetensors files"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        return f"rotary embeddings of type {rope['rope_type']!r} are computed by transformers"
    return None


def from_folder(folder: str, config: Any, dtype: torch.dtype, *, taps: Sequence[int] = ()) -> CompactDecoder:
    """The compact decoder of a model folder, its weights converted to `dtype`.

    Raises UnsupportedModel where `in_files(folder, config)` says why not, or where a tensor is missing.
    """
    if reason := in_files(folder, config):
        raise UnsupportedModel(reason)
    tensors: dict[str, Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                tensors[name] = opened.get_tensor(name).to(dtype)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0)
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    return _assemble(config, tensors, inv_freq, 1.0, taps)


def embedding_and_head(loaded: LoadedTarget) -> tuple[Tensor, Tensor]:
    """A target's input embedding and output head, `[vocab, hidden]` each, for a drafter that borrows them.

    From its files where they can be read there, so that transformers' model is not loaded for two tensors.
    """
    if in_files(loaded.folder, loaded.config) is not None:
        model = loaded.model
        return model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()
    names = {"model.embed_tokens.weight", "lm_head.weight"}
    tensors: dict[str, Tensor] = {}
    for file in sorted(Path(loaded.folder).glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in names.intersection(opened.keys()):
                tensors[name] = opened.get_tensor(name)
    embed = _tensor(tensors, "model.embed_tokens.weight")
    return embed, embed if loaded.config.tie_word_embeddings else _tensor(tensors, "lm_head.weight")


def _assemble(
    config: Any, tensors: Mapping[str, Tensor], inv_freq: Tensor, rope_scale: float, taps: Sequence[int]
) -> CompactDecoder:
    if bad := [tap for tap in taps if not 0 <= tap < config.num_hidden_layers]:
        raise UnsupportedModel(f"layer {bad[0]} cannot be tapped: the model has {config.num_hidden_layers} layers")
    embed = _tensor(tensors, "model.embed_tokens.weight")
    shape = Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
        vocab=embed.shape[0],
        eps=config.rms_norm_eps,
        rope_scale=rope_scale,
        windows=_windows(config),
        taps=tuple(taps),
    )
    layers = [_layer(shape, tensors, f"model.layers.{index}.") for index in range(shape.layers)]
    head = Linear(embed if config.tie_word_embeddings else _tensor(tensors, "lm_head.weight"))
    return CompactDecoder(shape, embed, layers, _norm(tensors, "model.norm", shape.eps), head, inv_freq).eval()


def _windows(config: Any) -> tuple[int | None, ...]:
    count, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types is None:  # Mistral: all layers slide, or none
        return (window,) * count
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _layer(shape: Shape, tensors: Mapping[str, Tensor], at: str) -> Layer:
    attention, mlp = f"{at}self_attn.", f"{at}mlp."
    qk_norms = f"{attention}q_norm.weight" in tensors
    return Layer(
        shape,
        {
            "input_norm": _norm(tensors, f"{at}input_layernorm", shape.eps),
            "qkv": _fused(tensors, *(f"{attention}{part}_proj" for part in "qkv")),
            "q_norm": _norm(tensors, f"{attention}q_norm", shape.eps) if qk_norms else None,
            "k_norm": _norm(tensors, f"{attention}k_norm", shape.eps) if qk_norms else None,
            "o": _fused(tensors, f"{attention}o_proj"),
            "post_norm": _norm(tensors, f"{at}post_attention_layernorm", shape.eps),
            "gate_up": _fused(tensors, f"{mlp}gate_proj", f"{mlp}up_proj"),
            "down": _fused(tensors, f"{mlp}down_proj"),
        },
    )


def _norm(tensors: Mapping[str, Tensor], name: str, eps: float) -> RMSNorm:
    return RMSNorm(_tensor(tensors, f"{name}.weight"), eps)


def _fused(tensors: Mapping[str, Tensor], *names: str) -> Linear:
    """One Linear whose outputs are those of the parts side by side; a single part's weight is shared."""
    weights = [_tensor(tensors, f"{name}.weight") for name in names]
    biases = [tensors.get(f"{name}.bias") for name in names]
    bias = None
    if any(part is not None for part in biases):
        bias = torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)])
    return Linear(weights[0] if len(weights) == 1 else torch.cat(weights), bias)


def _tensor(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise UnsupportedModel(f"the model has no tensor named {name}")
    return tensors[name].detach()
