"""Drafters on disk, in any of the published formats: load, check against a target, save.

Names and shapes are checked against the files' headers, and the pair against the target's configuration, before a
weight is read or allocated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from firesteel.errors import DamagedData, InvalidParameter, UnsupportedModel
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.formats import read_config
from firesteel.models.drafters.model import LENT, DrafterModel
from firesteel.models.drafters.stored import (
    MASK_SIDE_FILE,
    WEIGHTS,
    StoredTensor,
    folder_of,
    read_json,
    stored_tensors,
)
from firesteel.models.drafters.written import Format, config_json
from firesteel.paths import made_whole

# Tables are padded to a multiple of 64 rows, by a few hundred at most.
_PADDING = 512


@dataclass(frozen=True)
class LoadedDrafter:
    """A drafter, ready but for the target's tables where it has none of its own (`DrafterModel.lend`).

    Fields:
        notes: what had to be decided to read it, in words.
        name: what the user asked for; folder: where its files are.
    """

    model: DrafterModel
    notes: tuple[str, ...]
    name: str
    folder: Path


def load_drafter(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    target_config: Any = None,
) -> LoadedDrafter:
    """Load a drafter from a folder or a hub id.

    Args:
        dtype: of its weights in memory.
        target_config: transformers' configuration of the target; the pair is then checked before any weight is read.

    Raises:
        TargetNotFound: neither on this disk nor on the hub.
        UnsupportedModel: a format, feature or file that is not read; weights that are not those of its config.json.
        DamagedData: a file that is broken.
        InvalidParameter: a key with a wrong value, or a target that it does not fit.
    """
    name = str(name)
    folder = folder_of(name, ("*.json",))
    if (folder / MASK_SIDE_FILE).exists():
        raise UnsupportedModel(
            f"drafter {name} keeps its mask's embedding in {MASK_SIDE_FILE}: a pickle could run code, so it is not read"
        )
    read = read_config(read_json(folder / "config.json"))
    config, notes = read.config, list(read.notes)
    if target_config is not None:
        check_pair(config, target_config)
    folder = folder_of(name, ("*.json", "*.safetensors"))
    stored = stored_tensors(name, folder)
    if config.confidence and not any(key.startswith("confidence_head.") for key in stored):
        config = replace(config, confidence=False, confidence_markov=False)
        notes.append("config.json names a confidence head, but there are no weights of one: it drafts without")
    model = _skeleton(config)
    if model.confidence_head is not None and "confidence_head.proj.bias" not in stored:
        model.confidence_head.proj.bias = None  # DeepSeek's bundled heads have none
    _check_tensors(name, model, stored)
    if target_config is not None:
        _check_lending(name, config, stored, target_config)
    weights = {key: stored[key].read(dtype, device) for key in model.state_dict()}
    model.load_state_dict(weights, assign=True)
    model.inv_freq = model.inv_freq.to(device)
    model.kept = _kept(name, config, stored["d2t"].read(torch.int64, device)) if config.reduced else None
    for key, attribute in zip(LENT, ("embed", "head"), strict=True):
        if key in stored:
            setattr(model, attribute, stored[key].read(dtype, device))
    return LoadedDrafter(model.eval(), tuple(notes), name, folder)


def check_pair(config: DrafterConfig, target_config: Any) -> None:
    """Whether a drafter can draft for a target, from their configurations alone.

    Raises:
        InvalidParameter: it cannot; names what differs on both sides.
    """
    target = target_config.get_text_config(decoder=True)
    vocab, layers = target.vocab_size, target.num_hidden_layers

    def require(holds: bool, drafter: str, its: str) -> None:
        if not holds:
            raise InvalidParameter(f"this drafter is not one of this target: {drafter}, and the target {its}")

    require(
        config.target_hidden == target.hidden_size,
        f"it reads features of width {config.target_hidden}",
        f"has width {target.hidden_size}",
    )
    difference, larger = abs(config.vocab - vocab), max(config.vocab, vocab)
    require(
        difference == 0 or (difference < _PADDING and larger % 64 == 0),
        f"it knows {config.vocab} tokens",
        f"{vocab}",
    )
    # transformers hands out the last layer's output normed, and no published drafter was trained on that.
    require(
        config.target_layers[-1] <= layers - 2,
        f"it reads the outputs of layers {list(config.target_layers)}",
        f"has {layers} layers, of which 0 to {layers - 2} can be read",
    )
    require(
        config.mask_token_id < vocab,
        f"its mask is token {config.mask_token_id}",
        f"has an embedding table of {vocab} rows",
    )


def save_drafter(
    drafter: DrafterModel | Mapping[str, Tensor],
    config: DrafterConfig,
    folder: Path,
    *,
    format: Format = "deepspec",
    kept: Tensor | None = None,
    embed: Tensor | None = None,
    head: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a drafter as config.json and model.safetensors, whole or not at all.

    Args:
        drafter: the model, or its tensors by `DrafterModel.stored`'s names.
        folder: must not exist yet.
        kept: `int64[draft_vocab]` the target id of each draft id, rising; the model's own when it has one.
        embed, head: the target's tables `[>= vocab, H]`, to be written too; of the head only the kept rows are, or it
            holds only these. Other engines ask for the head of a reduced vocabulary.
        dtype: of the weights in the file.

    Raises:
        InvalidParameter: the folder exists, the tensors are not those of `config`, or the format cannot say it.
    """
    if folder.exists():
        raise InvalidParameter(f"{folder} exists already: a drafter is never written over another")
    if isinstance(drafter, DrafterModel):
        tensors = dict(drafter.stored())
        kept = drafter.kept if kept is None else kept
    else:
        tensors = dict(drafter)
        wanted = {key: tuple(value.shape) for key, value in _skeleton(config).state_dict().items()}
        if faults := _faults(wanted, {key: tuple(value.shape) for key, value in tensors.items()}):
            raise InvalidParameter(f"these are not the tensors of this configuration: {faults}")
    if config.reduced != (kept is not None):
        raise InvalidParameter("a drafter needs kept exactly when its head knows only part of the vocabulary")
    if embed is not None:
        tensors["embed_tokens.weight"] = embed[: config.vocab]
    if head is not None:
        whole = kept is None or len(head) == config.draft_vocab
        tensors["lm_head.weight"] = head[: config.draft_vocab] if whole else head[kept.to(head.device)]
    written = {key: value.detach().to("cpu", dtype).contiguous() for key, value in tensors.items()}
    if kept is not None:
        kept = kept.cpu()
        written["d2t"] = kept - torch.arange(len(kept))
        written["t2d"] = torch.zeros(config.vocab, dtype=torch.bool).scatter(0, kept, True)
    said = config_json(config, format)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with made_whole(folder) as made:
        save_file(written, made / WEIGHTS, metadata={"format": "pt"})
        (made / "config.json").write_text(json.dumps(said, indent=2) + "\n")


def _skeleton(config: DrafterConfig) -> DrafterModel:
    """A drafter whose weights are shapes only."""
    with torch.device("meta"):
        return DrafterModel(config, torch.empty(config.draft_vocab) if config.reduced else None)


def _check_tensors(name: str, model: DrafterModel, stored: Mapping[str, StoredTensor]) -> None:
    """Every tensor of the model is there in its shape, and no other but the target's tables and the vocabulary."""
    config = model.config
    wanted = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    tables = dict(zip(LENT, ((config.vocab, config.hidden), (config.draft_vocab, config.hidden)), strict=True))
    wanted |= {key: shape for key, shape in tables.items() if key in stored}
    if config.reduced:
        wanted["d2t"] = (config.draft_vocab,)
    found = {key: tensor.shape for key, tensor in stored.items() if config.reduced or key != "d2t"}
    if faults := _faults(wanted, found):
        raise UnsupportedModel(f"drafter {name} does not hold the weights that its config.json describes: {faults}")
    if quantised := [key for key in wanted if key != "d2t" and not stored[key].floating]:
        kinds = sorted({stored[key].dtype for key in quantised})
        raise UnsupportedModel(f"drafter {name} is quantised ({', '.join(kinds)}: {_listed(quantised)}): not supported")


def _faults(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> str:
    """What differs, in words; empty when nothing does."""
    faults = []
    if missing := sorted(wanted.keys() - found.keys()):
        faults.append(f"missing {_listed(missing)}")
    if extra := sorted(found.keys() - wanted.keys()):
        faults.append(f"not wanted {_listed(extra)}")
    for key in sorted(wanted.keys() & found.keys()):
        if wanted[key] != found[key]:
            faults.append(f"{key} is {list(found[key])} and should be {list(wanted[key])}")
    return _listed(faults, "; ")


def _listed(names: list[str], comma: str = ", ", most: int = 12) -> str:
    more = f"{comma}and {len(names) - most} more" if len(names) > most else ""
    return comma.join(names[:most]) + more


def _check_lending(name: str, config: DrafterConfig, stored: Mapping[str, StoredTensor], target_config: Any) -> None:
    """What a drafter has no copy of, the target must have in the right size."""
    target = target_config.get_text_config(decoder=True)
    missing = [key for key in LENT if key not in stored]
    if missing and (config.hidden != target.hidden_size or config.vocab > target.vocab_size):
        raise InvalidParameter(
            f"drafter {name} has no {_listed(missing)} of [{config.vocab}, {config.hidden}] of its own, "
            f"and the target's tables are [{target.vocab_size}, {target.hidden_size}]"
        )


def _kept(name: str, config: DrafterConfig, offsets: Tensor) -> Tensor:
    """Target ids of draft ids, from the offsets that files hold."""
    kept = offsets + torch.arange(len(offsets), device=offsets.device)
    if not bool((kept[1:] > kept[:-1]).all()) or int(kept[0]) < 0 or int(kept[-1]) >= config.vocab:
        raise DamagedData(f"d2t of drafter {name} does not lead to rising tokens below {config.vocab}")
    return kept
