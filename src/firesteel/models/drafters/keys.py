"""Reading single keys of a drafter's config.json: their type, their default, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.errors import InvalidParameter, UnsupportedModel, unknown

# speculators builds Qwen3's layers whatever the type, which then only decides defaults.
_LAYERS = ("qwen3", "dspark", "dflash", "dflash2", "llama")
_LAYER_TYPES = ("full_attention", "sliding_attention")
# The types whose frequencies do not depend on the length of the text, and the keys that each needs.
_ROPE_KINDS = {
    "default": (),
    "linear": ("factor",),
    "proportional": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
# Key: the values that change nothing. Any other value needs code that is not here.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "attention_mode": ("gqa", "mha"),
    "attention_modes": (),
    "attention_sink_bias": (False,),
    "attention_value_scale": (1.0,),
    "hidden_act": ("silu",),
    "is_neox_style": (True,),
    "logit_scale": (1.0,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0,),
    "projector_type": ("dflash", "dflash2", "dspark"),
    "quantization_config": (),
    "rope_is_neox_style": (True,),
    "use_aux_hidden_state": (True,),
}


class Keys:
    """Values by name: of the first table that has one. A null counts as absent."""

    def __init__(self, *tables: Mapping[str, Any]) -> None:
        self._tables = tables

    def get(self, name: str, default: Any = None) -> Any:
        for table in self._tables:
            if table.get(name) is not None:
                return table[name]
        return default

    def whole(self, name: str, default: int | None = None) -> int:
        return self._typed(name, default, "a whole number", (int,))

    def number(self, name: str, default: float | None = None) -> float:
        return float(self._typed(name, default, "a number", (int, float)))

    def flag(self, name: str, default: bool | None = None) -> bool:
        return self._typed(name, default, "true or false", (bool,))

    def _typed(self, name: str, default: Any, kind: str, types: tuple[type, ...]) -> Any:
        value = self.get(name, default)
        if value is None:
            raise InvalidParameter(f"the drafter's config.json says no {name}")
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise InvalidParameter(f"the drafter's {name} is not {kind}: {value!r}")
        return value


def table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The table under a key; empty when there is none."""
    value = raw.get(name) or {}
    if not isinstance(value, Mapping):
        raise InvalidParameter(f"the drafter's {name} is not a table: {value!r}")
    return value


def refuse_unsupported(heads: Keys, backbone: Keys) -> None:
    """Raise UnsupportedModel for a feature that would change every draft if it were passed over."""
    for name, harmless in _HARMLESS.items():
        for value in (heads.get(name), backbone.get(name)):
            if value is not None and value not in harmless:
                raise UnsupportedModel(f"drafters with {name} = {value!r} are not supported")
    layers_of = backbone.get("model_type", "qwen3")
    if layers_of not in _LAYERS:
        raise UnsupportedModel(f"drafters with layers of model_type = {layers_of!r} are not supported, only of qwen3's")


def anchor_first_of(keys: Keys, default: bool, why: str, notes: list[str]) -> bool:
    """The layout of a block's rows. A wrong guess costs nearly every token and raises nothing, so a guess is noted."""
    if keys.get("sample_from_anchor") is not None:
        return keys.flag("sample_from_anchor")
    notes.append(
        f"config.json has no sample_from_anchor: its rows are read {'anchor first' if default else 'in place'}, {why}"
    )
    return default


def layer_types(keys: Keys, layers: int, notes: list[str]) -> tuple[list[str], int | None]:
    """The type of each layer, and the window of the sliding ones; as transformers' Qwen3Config resolves them."""
    forced = keys.flag("use_swa", False)
    windowed = forced or keys.flag("use_sliding_window", keys.get("model_type") == "llama")
    window = keys.get("swa_window_size", keys.get("sliding_window")) if windowed else None
    if not isinstance(window, int | None) or window == 0:
        raise InvalidParameter(f"the drafter's sliding_window is not a number of tokens: {window!r}")
    types = keys.get("layer_types")
    if forced:
        types = ["sliding_attention"] * layers
    elif types is None:
        first = keys.whole("max_window_layers", 28)  # Qwen3Config's default
        types = [_LAYER_TYPES[windowed and window is not None and index >= first] for index in range(layers)]
    if not isinstance(types, list) or len(types) < layers:
        raise InvalidParameter(f"the drafter's layer_types do not name its {layers} layers: {types!r}")
    types = types[:layers]
    for name in types:
        if name not in _LAYER_TYPES:
            raise UnsupportedModel(str(unknown("layer type", str(name), _LAYER_TYPES)))
    if "sliding_attention" in types and window is None:
        notes.append("layer_types name sliding layers, but no window is in use: they see the whole context")
    return types, window


def rope_parameters(keys: Keys, notes: list[str]) -> dict[str, Any]:
    """The drafter's own rotary embedding: of `rope_parameters`, else of `rope_scaling`, else of a flat `rope_theta`."""
    found = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    if not isinstance(found, Mapping) or any(isinstance(value, Mapping) for value in found.values()):
        raise UnsupportedModel(f"a drafter has one rotary embedding for all layers, unlike rope_parameters = {found!r}")
    # A drafter of a multimodal target reads the temporal component alone.
    rope = {name: value for name, value in found.items() if value is not None and "mrope" not in name}
    old = rope.pop("type", None)
    kind = rope.pop("rope_type", old) or "default"
    kind = "default" if kind == "mrope" else kind
    if kind not in _ROPE_KINDS:
        raise UnsupportedModel(str(unknown("rope_type", str(kind), _ROPE_KINDS)))
    if kind != "proportional" and rope.pop("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"drafters that rotate part of a head are not supported: rope_parameters = {found!r}")
    if missing := [name for name in _ROPE_KINDS[kind] if name not in rope]:
        raise InvalidParameter(f"rope_type {kind!r} needs {', '.join(missing)}, which config.json does not say")
    if kind in ("llama3", "yarn"):
        rope.setdefault("original_max_position_embeddings", keys.whole("max_position_embeddings"))
    theta = rope.pop("rope_theta", None) or keys.get("rope_theta")
    if theta is None:
        theta = 1e4 if keys.get("model_type") == "llama" else 1e6
        notes.append(f"config.json has no rope_theta: taken as {theta:g}, as vLLM takes it")
    return {"rope_type": kind, "rope_theta": float(theta), **rope}
