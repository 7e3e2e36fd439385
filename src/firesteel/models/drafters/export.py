"""Drafters for other engines: checkpoints that hold everything each of them reads.

Beyond what firesteel needs itself:

    format        read by                  of the target's tables it holds
    deepspec      DeepSpec, vLLM, SGLang   both in DSpark's layout; z-lab's kinds borrow theirs
    speculators   speculators, vLLM        the head of a reduced vocabulary
    gguf          llama.cpp's converter    the head of a reduced vocabulary

Never an embedding for llama.cpp: its converter drops a whole vocabulary's head, and its loader would then take the
embedding for the head too, which is wrong for a target that does not tie them.

Engines know DSpark's layout of a block only beside a Markov head, so a DFlash drafter in that layout gets a head that
adds nothing. llama.cpp knows a confidence head only with the Markov features, so one without gets zeros for them.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from firesteel.default_target import DEFAULT_TARGET
from firesteel.errors import InvalidParameter, unknown
from firesteel.models.drafters.checkpoint import check_pair, save_drafter
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.model import DrafterModel

ExportFormat = Literal["deepspec", "speculators", "gguf"]

_SPECULATORS = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "DSparkDraftModel"}
# Other engines do not know our short name.
_HUB_IDS = {DEFAULT_TARGET: "HuggingFaceTB/SmolLM2-135M-Instruct"}
# Of the head that adds nothing: a multiple of what engines' kernels read at once.
_SILENT_RANK = 32

Tensors = dict[str, Tensor]


def export_drafter(
    model: DrafterModel, folder: Path, format: ExportFormat, *, target: str, target_config: Any
) -> DrafterConfig:
    """Write a drafter for other engines, whole or not at all: in bf16, and for llama.cpp's converter in fp32.

    Args:
        model: with an embedding and a head of its own, or lent.
        folder: must not exist yet.
        format: "gguf" writes what llama.cpp's converter makes a GGUF file of.
        target: the target's name as a user calls it.
        target_config: transformers' configuration of the target.

    Returns:
        The configuration as it was written.

    Raises:
        InvalidParameter: the folder exists, the drafter is not one of this target, or the format has no words for it.
    """
    if format not in get_args(ExportFormat):
        raise unknown("export format", format, get_args(ExportFormat))
    if folder.exists():
        raise InvalidParameter(f"{folder} exists already: a drafter is never written over another")
    check_pair(model.config, target_config)
    text = target_config.get_text_config(decoder=True)
    config = replace(
        model.config,
        target=model.config.target or target,
        max_context=model.config.max_context or text.max_position_embeddings,
    )
    config = replace(config, target=_HUB_IDS.get(config.target, config.target))
    config, tensors = _with_known_heads(config, dict(model.stored()))
    if format == "gguf":
        config, tensors = _for_llama_cpp(config, tensors)
    own_tables = format == "deepspec" and config.kind == "dspark"
    # A target's own table is too short for a drafter whose vocabulary was padded further.
    needs_embed = own_tables or (format != "gguf" and config.vocab > text.vocab_size)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        part = Path(scratch) / "part"
        save_drafter(
            tensors,
            config,
            part,
            format="speculators" if format == "speculators" else "deepspec",
            kept=model.kept,
            embed=model.embed if needs_embed else None,
            head=model.head if own_tables or config.draft_vocab != config.vocab else None,
            # The converter rounds to what it is asked for. A target's head is not always of bf16 values, and one that
            # was rounded on the way moved the odds of an fp32 file's drafts by a hundredth of a nat.
            dtype=torch.float32 if format == "gguf" else torch.bfloat16,
        )
        _say_more(part / "config.json", config, format, text)
        part.rename(folder)
    return config


def caveats(config: DrafterConfig, format: ExportFormat) -> tuple[str, ...]:
    """In words, where an engine that reads the format would run this drafter otherwise than it was trained."""
    sliding = [causal for causal, window in zip(config.causal, config.windows, strict=True) if window is not None]
    found = []
    if config.markov_rank and config.markov_kind != "vanilla":
        found.append(f"vLLM 0.32 knows vanilla Markov heads only, and this one is {config.markov_kind}")
    if format == "speculators" and sliding and config.kind == "dspark" and not all(sliding):
        found.append("vLLM 0.32 takes the sliding layers of DSpark in speculators' format for causal: use deepspec")
    if format == "speculators" and any(sliding) and config.kind != "dspark" and not config.uniform:
        found.append("vLLM 0.32 makes all layers in speculators' format causal when the sliding ones are: use deepspec")
    return tuple(found)


def _with_known_heads(config: DrafterConfig, tensors: Tensors) -> tuple[DrafterConfig, Tensors]:
    """The same drafter with a Markov head where its layout asks for one, and a bias where engines read one."""
    like = tensors["fc.weight"]
    if config.anchor_first and not config.markov_rank and config.kind != "dflash2":
        config = replace(config, kind="dspark", markov_rank=_SILENT_RANK, markov_kind="vanilla")
        tensors["markov_head.markov_w1.weight"] = like.new_zeros(config.vocab, _SILENT_RANK)
        tensors["markov_head.markov_w2.weight"] = like.new_zeros(config.draft_vocab, _SILENT_RANK)
    if config.confidence:
        # vLLM makes room for a bias in any case, and reads what was there before when the file has none.
        tensors.setdefault("confidence_head.proj.bias", like.new_zeros(1))
    return config, tensors


def _for_llama_cpp(config: DrafterConfig, tensors: Tensors) -> tuple[DrafterConfig, Tensors]:
    """What llama.cpp reads the same way, and a refusal of what it does not."""

    def require(holds: bool, text: str) -> None:
        if not holds:
            raise InvalidParameter(f"llama.cpp cannot run this drafter: {text}")

    require(config.markov_kind == "vanilla", f"its Markov head is {config.markov_kind}, not vanilla")
    require(config.uniform, "its layers see their blocks in different directions")
    require(
        config.target_hidden == config.hidden,
        f"its width is {config.hidden} and the target's {config.target_hidden}",
    )
    scaled = config.softcap is not None or config.output_multiplier != 1.0
    require(config.kind != "dspark" or not scaled, "its logits are scaled before the Markov bias is added")
    if config.confidence and not config.confidence_markov:
        weight = tensors["confidence_head.proj.weight"]
        tensors["confidence_head.proj.weight"] = F.pad(weight, (0, config.markov_rank))
        config = replace(config, confidence_markov=True)
    return config, tensors


def _say_more(file: Path, config: DrafterConfig, format: ExportFormat, target: Any) -> None:
    """Keys that engines look for besides those that describe a drafter."""
    said = json.loads(file.read_text())
    if format == "speculators":
        # Its own class names, which llama.cpp's converter knows, and no model_type: vLLM goes by that key's absence.
        said["architectures"] = [_SPECULATORS[config.kind]]
        said.pop("model_type", None)
        said["speculators_config"]["verifier"]["architectures"] = target.architectures or []
    else:
        said["num_target_layers"] = target.num_hidden_layers
    if format == "gguf":
        said["dtype"] = "float32"
        said["is_causal"] = config.causal[0]  # llama.cpp has one word for all layers, and does not look at their types
    file.write_text(json.dumps(said, indent=2) + "\n")
