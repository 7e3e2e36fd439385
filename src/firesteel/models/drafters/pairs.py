"""Which drafter a target has: the published pairs, and the one that comes with firesteel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from firesteel.default_target import DEFAULT_TARGET

SHIPPED = Path(__file__).parents[2] / "data" / "drafters" / "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Pair:
    """A published drafter, by hub id, the target that it was trained for, and where the pair is stated."""

    target: str
    drafter: str
    source: str


_DEEPSPEC = "the released checkpoints in DeepSpec's README; non-thinking mode"
_LIQUID = "the drafter's model card"
_ZLAB = "the model list in z-lab/dflash's README"

PAIRS = (
    Pair("Qwen/Qwen3-4B", "deepseek-ai/dspark_qwen3_4b_block7", _DEEPSPEC),
    Pair("Qwen/Qwen3-8B", "deepseek-ai/dspark_qwen3_8b_block7", _DEEPSPEC),
    Pair("Qwen/Qwen3-14B", "deepseek-ai/dspark_qwen3_14b_block7", _DEEPSPEC),
    Pair("google/gemma-4-12B-it", "deepseek-ai/dspark_gemma4_12b_block7", _DEEPSPEC),
    Pair("LiquidAI/LFM2.5-1.2B-Instruct", "LiquidAI/LFM2.5-1.2B-Instruct-DSpark", _LIQUID),
    Pair("LiquidAI/LFM2.5-2.6B", "LiquidAI/LFM2.5-2.6B-DSpark", _LIQUID),
    Pair("LiquidAI/LFM2.5-8B-A1B", "LiquidAI/LFM2.5-8B-A1B-DSpark", _LIQUID),
    Pair("LiquidAI/LFM2.5-24B-A2B", "LiquidAI/LFM2.5-24B-A2B-DSpark", _LIQUID),
    Pair("Qwen/Qwen3-Coder-30B-A3B-Instruct", "z-lab/Qwen3-Coder-30B-A3B-DFlash", _ZLAB),
    Pair("Qwen/Qwen3-Coder-Next", "z-lab/Qwen3-Coder-Next-DFlash", _ZLAB),
    Pair("Qwen/Qwen3.5-4B", "z-lab/Qwen3.5-4B-DFlash", _ZLAB),
    Pair("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash", _ZLAB),
    Pair("Qwen/Qwen3.5-27B", "z-lab/Qwen3.5-27B-DFlash", _ZLAB),
    Pair("Qwen/Qwen3.5-35B-A3B", "z-lab/Qwen3.5-35B-A3B-DFlash", _ZLAB),
    Pair("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash", _ZLAB),
    Pair("Qwen/Qwen3.6-35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash", _ZLAB),
    Pair("Qwen/Qwen3.8-27B", "z-lab/Qwen3.8-27B-DFlash2", _ZLAB),
    Pair("meta-llama/Llama-3.1-8B-Instruct", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", _ZLAB),
    Pair("meta-models/Muse-Glimmer-30B", "z-lab/Muse-Glimmer-30B-DFlash2", _ZLAB),
    Pair("openai/gpt-oss-20b", "z-lab/gpt-oss-20b-DFlash", _ZLAB),
    Pair("openai/gpt-oss-120b", "z-lab/gpt-oss-120b-DFlash", _ZLAB),
)

# What repackaging adds to a model's name: file type and number format.
_PACKING = re.compile(
    r"[-_.](gguf|i?q\d\w*|bf16|f16|f32|fp16|fp8|int[48]|w\da\d+|awq|gptq(-int[48])?|(mlx-|bnb-)?[48]bit)$"
)


def drafter_for(target: str) -> str | None:
    """The folder or hub id of the drafter published for a target, None when there is none.

    Args:
        target: a hub id, a folder or a GGUF file; only the model's own name counts, so a quantised copy of a target
            under another owner has the target's drafter.
    """
    name = _model_name(target)
    if name == _model_name(DEFAULT_TARGET):
        return str(SHIPPED) if (SHIPPED / "config.json").is_file() else None
    return next((pair.drafter for pair in PAIRS if _model_name(pair.target) == name), None)


def _model_name(target: str) -> str:
    name = Path(target).name.lower()
    while (shorter := _PACKING.sub("", name)) != name:
        name = shorter
    return name.replace("_", "-")
