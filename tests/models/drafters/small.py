"""Small drafters of every kind, and config.json files as their authors write them."""

from __future__ import annotations

from typing import Any

import torch

from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.model import DrafterModel

VOCAB, HIDDEN = 61, 32

_HEADS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "dspark": {"markov_rank": 6, "confidence": True, "confidence_markov": True},
    "dflash2": {"conv_kernel": 2, "conv_group": 8, "selector_rank": 5, "selector_top": 7},
}


def config(kind: str = "dspark", **changes: Any) -> DrafterConfig:
    """A configuration with odd sizes, where a mistake would otherwise hide."""
    settings = {
        "kind": kind,
        "anchor_first": kind == "dspark",
        "block_size": 5,
        "mask_token_id": VOCAB - 2,
        "target_layers": (1, 3, 4),
        "target_hidden": HIDDEN,
        "hidden": HIDDEN,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 12,
        "intermediate": 40,
        "eps": 1e-5,
        "vocab": VOCAB,
        "draft_vocab": VOCAB,
        "rope": {"rope_type": "default", "rope_theta": 10000.0},
        "causal": (False, False),
        "windows": (None, None),
        "max_context": 512,
        **_HEADS[kind],
        **changes,
    }
    return DrafterConfig(**settings)


def kept_ids(settings: DrafterConfig, seed: int = 0) -> torch.Tensor | None:
    """Random rising target ids of a reduced vocabulary."""
    if not settings.reduced:
        return None
    order = torch.randperm(settings.vocab, generator=torch.Generator().manual_seed(seed))
    return order[: settings.draft_vocab].sort().values


def model(settings: DrafterConfig, seed: int = 0) -> DrafterModel:
    """A random drafter without tables of its own; a wide initialisation keeps greedy choices far from ties."""
    generator = torch.Generator().manual_seed(seed)
    drafter = DrafterModel(settings, kept_ids(settings, seed))
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            mean = 1.0 if "norm" in name else 0.0
            parameter.copy_(mean + 0.3 * torch.randn(parameter.shape, generator=generator))
    return drafter.eval()


def tables(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A target's embedding and output head."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCAB, HIDDEN, generator=generator), torch.randn(VOCAB, HIDDEN, generator=generator)
