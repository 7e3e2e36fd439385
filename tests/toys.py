"""Small things that stand in for big ones: random models, a scripted target, a tokenizer of one character a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from firesteel.engine.engine import Engine, EngineConfig
from firesteel.engine.request import Request
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.model import DrafterModel
from firesteel.models.hf import TransformersTarget
from firesteel.policy import make
from firesteel.sampling import SamplingParams

VOCAB = 97

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 24},
    "Qwen2": {},
    "Qwen3": {},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "Gemma": {},
    "Gemma2": {"sliding_window": 24},
}


def config(architecture: str, **changes: Any) -> PretrainedConfig:
    """A small configuration; a wide initialisation keeps greedy choices far from ties."""
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": None,
        **ARCHITECTURES.get(architecture, {}),
        **changes,
    }
    return getattr(transformers, f"{architecture}Config")(**settings)


def model(architecture: str = "Llama", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A small random model, fp32, in evaluation mode."""
    torch.manual_seed(seed)
    return getattr(transformers, f"{architecture}ForCausalLM")(config(architecture, **changes)).eval()


def target(architecture: str = "Llama", seed: int = 0, taps: Sequence[int] = (), **changes: Any) -> TransformersTarget:
    """A small random target."""
    return TransformersTarget(model(architecture, seed, **changes), taps)


class Letters:
    """A text sink whose token i is the character chr(i + 33)."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.text, self._stop, self._sent = "", tuple(stop), 0

    def push(self, token: int) -> bool:
        self.text += chr(token + 33)
        return any(stop in self.text for stop in self._stop)

    def close(self) -> None:
        pass

    def delta(self) -> str:
        new, self._sent = self.text[self._sent :], len(self.text)
        return new


def request(prompt: Sequence[int], name: str = "r", *, stop_ids: Sequence[int] = (), **params: Any) -> Request:
    """A greedy request unless told otherwise."""
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 32, **params})
    return Request(name, list(prompt), sampling, frozenset(stop_ids), 512, Letters(sampling.stop))


def engine(of: TransformersTarget, policy: str = "off", width: int | None = None, **settings: Any) -> Engine:
    """An engine with few slots."""
    drafter, record = settings.pop("drafter", None), settings.pop("record", None)
    limits = EngineConfig(**{"slots": 4, "chunk": 16, **settings})
    return Engine(of, make(policy, width=width), drafter=drafter, config=limits, record=record)


def decode(
    of: TransformersTarget, requests: Sequence[Request], policy: str = "off", width: int | None = None, **settings: Any
) -> Engine:
    """Run requests to their end; the engine, for what it has to say afterwards."""
    runner = engine(of, policy, width, **settings)
    for _ in runner.run(requests):
        pass
    return runner


def drafter_config(kind: str, of: PretrainedConfig, **changes: Any) -> DrafterConfig:
    """A small drafter of a kind for a small target; odd sizes where a mistake would otherwise hide."""
    heads = {
        "dspark": {"markov_rank": 6, "confidence": True, "confidence_markov": True},
        "dflash": {},
        "dflash2": {"conv_kernel": 2, "conv_group": 8, "selector_rank": 5, "selector_top": 7},
    }
    settings = {
        "kind": kind,
        "anchor_first": kind == "dspark",
        "block_size": 4,
        "mask_token_id": of.vocab_size - 1,
        "target_layers": (0, 1),
        "target_hidden": of.hidden_size,
        "hidden": of.hidden_size,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "intermediate": 40,
        "eps": 1e-5,
        "vocab": of.vocab_size,
        "draft_vocab": of.vocab_size,
        "causal": (False, False),
        "windows": (None, None),
        **heads[kind],
        **changes,
    }
    return DrafterConfig(**settings)


def drafter_model(of: PreTrainedModel, kind: str = "dspark", seed: int = 0, **changes: Any) -> DrafterModel:
    """A small random drafter with the target's embedding and head."""
    settings = drafter_config(kind, of.config, **changes)
    generator = torch.Generator().manual_seed(seed)
    kept = None
    if settings.reduced:
        kept = torch.randperm(settings.vocab, generator=generator)[: settings.draft_vocab].sort().values
    drafter = DrafterModel(settings, kept)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            mean = 1.0 if "norm" in name else 0.0
            parameter.copy_(mean + 0.3 * torch.randn(parameter.shape, generator=generator))
    drafter.lend(of.get_input_embeddings().weight.detach(), of.get_output_embeddings().weight.detach())
    return drafter.eval()
