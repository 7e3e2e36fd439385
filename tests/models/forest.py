"""Random models, random trees and the flat rows of a forward, built the slow and obvious way for the model tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from firesteel.models.rows import PackedRows

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama3-rope-biases": lambda: LlamaConfig(**SMALL, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True),
    "llama-linear-rope": lambda: LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    ),
    "mistral-sliding": lambda: MistralConfig(**SMALL, sliding_window=9),
    "qwen2": lambda: Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True),
}


def random_model(name: str, seed: int = 0, **changes: Any) -> Any:
    """A small random transformers model in fp32 whose biases and norms are random too, so that dropping one shows."""
    torch.manual_seed(seed)
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if "norm" in key else 0.0))
    return model


@dataclass
class Request:
    """What one slot holds: the token at each place and each place's parent place (-1: none)."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def path(self, place: int) -> list[int]:
        """The places from the root to `place`."""
        places = []
        while place >= 0:
            places.append(place)
            place = self.parents[place]
        return places[::-1]

    def grow(self, parents: list[int], tokens: list[int]) -> list[int]:
        """Adds rows; `parents` are places. The places of the new rows."""
        first = len(self.tokens)
        self.parents += parents
        self.tokens += tokens
        return list(range(first, len(self.tokens)))


def random_tree(anchor_parent: int, rows: int, generator: torch.Generator) -> list[int]:
    """Parents (as places) of a random tree of `rows` rows whose first hangs below place `anchor_parent`."""
    parents = [anchor_parent]
    for row in range(1, rows):
        parents.append(anchor_parent + 1 + int(torch.randint(row, (1,), generator=generator)))
    return parents


def pack(requests: list[Request], rows: list[list[int]], multiple: int = 64) -> PackedRows:
    """The rows at the given places of each request; request b has slot b."""
    width = max(len(r) for r in rows)
    length = -(-max(len(r.tokens) for r in requests) // multiple) * multiple
    table = torch.zeros(len(requests), width, dtype=torch.long)
    mask = torch.zeros(len(requests), width, length, dtype=torch.bool)
    mask[:, :, 0] = True  # padding rows see place 0
    key_positions = torch.zeros(len(requests), length, dtype=torch.long)
    tokens, positions, slots, places, flat = [], [], [], [], []
    for slot, (request, mine) in enumerate(zip(requests, rows, strict=True)):
        for place in range(len(request.tokens)):
            key_positions[slot, place] = len(request.path(place)) - 1
        for r, place in enumerate(mine):
            path = request.path(place)
            mask[slot, r] = False
            mask[slot, r, path] = True
            table[slot, r] = len(tokens)
            flat.append(slot * width + r)
            tokens.append(request.tokens[place])
            positions.append(len(path) - 1)
            slots.append(slot)
            places.append(place)
    return PackedRows(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        places=torch.tensor(places),
        table=table,
        flat=torch.tensor(flat),
        mask=mask,
        key_positions=key_positions,
        first_slot=0,
    )


def cache(shape: Any, slots: int, capacity: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Zeroed keys and values [slots, layers, kv_heads, capacity, head_dim]."""
    size = (slots, shape.layers, shape.kv_heads, capacity, shape.head_dim)
    return torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)


def forest_of(vocab: int, contexts: list[int], trees: list[int], seed: int = 0) -> tuple[list[Request], list, list]:
    """Requests with random contexts and random trees; the rows of the contexts and the rows of the trees."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(vocab, (count,), generator=generator).tolist()

    requests = [Request() for _ in contexts]
    prompts = [r.grow(list(range(-1, c - 1)), draw(c)) for r, c in zip(requests, contexts, strict=True)]
    rows = [
        r.grow(random_tree(c - 1, n, generator), draw(n)) for r, c, n in zip(requests, contexts, trees, strict=True)
    ]
    return requests, prompts, rows


def run(model: Any, shape: Any, requests: list[Request], prompts: list, rows: list, dtype: torch.dtype = torch.float32):
    """Prefills the contexts, then verifies the trees: (logits, features) of the trees' rows."""
    keys, values = cache(shape, len(requests), 256, dtype)
    full = [list(r.tokens) for r in requests], [list(r.parents) for r in requests]
    for request, prompt in zip(requests, prompts, strict=True):  # the context must not know of the tree yet
        del request.tokens[len(prompt) :], request.parents[len(prompt) :]
    model(pack(requests, prompts), keys, values)
    for request, tokens, parents in zip(requests, *full, strict=True):
        request.tokens, request.parents = tokens, parents
    with torch.inference_mode():
        return model(pack(requests, rows), keys, values)
