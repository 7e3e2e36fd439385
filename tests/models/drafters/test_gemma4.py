"""Drafters with Gemma 4's layers, beside a plain forward made of transformers' own Gemma 4 parts.

DeepSpec, whose model this is, is not a package: its forward is written down here, one block at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import (
    Gemma4RMSNorm,
    Gemma4TextMLP,
    Gemma4TextRotaryEmbedding,
    apply_rotary_pos_emb,
)

from firesteel.errors import InvalidParameter
from firesteel.models.drafters.backbone import Context
from firesteel.models.drafters.checkpoint import load_drafter, save_drafter
from firesteel.models.drafters.formats import read_config
from firesteel.models.drafters.greedy import greedy_block
from tests.models.drafters import small

HIDDEN, HEADS, HEAD_DIM, LENGTH, BLOCK = 32, 4, 16, 13, 5
RAW: dict[str, Any] = {
    "architectures": ["Gemma4DSparkModel"],
    "model_type": "gemma4_text",
    "attention_k_eq_v": True,
    "block_size": BLOCK,
    "confidence_head_with_markov": True,
    "enable_confidence_head": True,
    "enable_moe_block": False,
    "final_logit_softcapping": 2.0,
    "global_head_dim": HEAD_DIM,
    "head_dim": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": HIDDEN,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 40,
    "layer_types": ["full_attention"] * 2,
    "markov_head_type": "vanilla",
    "markov_rank": 6,
    "mask_token_id": 4,
    "max_position_embeddings": 512,
    "num_attention_heads": HEADS,
    "num_global_key_value_heads": 1,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e4, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
    },
    "sample_from_anchor": True,
    "target_layer_ids": [1, 3, 4],
    "vocab_size": small.VOCAB,
}


class Plain:
    """DeepSpec's Gemma4DSparkModel over one block at the end of a text."""

    def __init__(self, raw: dict[str, Any], weights: dict[str, Tensor]) -> None:
        own = ("architectures", "block_size", "mask_token_id", "target_layer_ids", "markov_rank", "markov_head_type")
        named = {key: value for key, value in raw.items() if key not in own}
        self.config, self.weights = Gemma4TextConfig(**named), weights
        self.kv_heads = raw["num_global_key_value_heads" if raw["attention_k_eq_v"] else "num_key_value_heads"]

    def norm(self, name: str | None, x: Tensor) -> Tensor:
        norm = Gemma4RMSNorm(x.shape[-1], eps=1e-6, with_scale=name is not None)
        if name is not None:
            norm.weight.copy_(self.weights[f"{name}.weight"])
        return norm(x)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"])

    def attend(self, at: str, x: Tensor, context: Tensor) -> Tensor:
        """Block rows [B, H] over the context's features [T, H] and themselves."""
        both = torch.cat([context, x])
        split = (1, len(both), -1, HEAD_DIM)
        q = self.norm(f"{at}.q_norm", self.linear(f"{at}.q_proj", x).view(1, len(x), -1, HEAD_DIM)).transpose(1, 2)
        k = self.linear(f"{at}.k_proj", both).view(split)
        v = k if self.config.attention_k_eq_v else self.linear(f"{at}.v_proj", both).view(split)
        k, v = self.norm(f"{at}.k_norm", k).transpose(1, 2), self.norm(None, v).transpose(1, 2)
        rotary = Gemma4TextRotaryEmbedding(self.config)
        cos, sin = rotary(x, torch.arange(len(both))[None], "full_attention")
        q = apply_rotary_pos_emb(q, cos[:, -len(x) :], sin[:, -len(x) :])
        k = apply_rotary_pos_emb(k, cos, sin)
        k, v = (part.repeat_interleave(HEADS // self.kv_heads, dim=1) for part in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, scale=1.0)
        return self.linear(f"{at}.o_proj", out.transpose(1, 2).reshape(len(x), -1))

    def mlp(self, at: str, x: Tensor) -> Tensor:
        mlp = Gemma4TextMLP(self.config, 0)
        mlp.load_state_dict({name: self.weights[f"{at}.{name}"] for name in mlp.state_dict()})
        return mlp(x)

    def states(self, features: Tensor, block: Tensor) -> Tensor:
        """[B, H]"""
        context = self.norm("hidden_norm", self.linear("fc", features))
        x = block * HIDDEN**0.5
        for index in range(2):
            at = f"layers.{index}"
            out = self.attend(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", x), context)
            x = x + self.norm(f"{at}.post_attention_layernorm", out)
            out = self.mlp(f"{at}.mlp", self.norm(f"{at}.pre_feedforward_layernorm", x))
            x = (x + self.norm(f"{at}.post_feedforward_layernorm", out)) * self.weights[f"{at}.layer_scalar"]
        return self.norm("norm", x)

    def greedy(self, features: Tensor, anchor: int, embed: Tensor, head: Tensor) -> tuple[list[int], Tensor]:
        """Capped base logits first, then the Markov bias."""
        ids = [anchor] + [4] * (BLOCK - 1)
        base = torch.tanh(self.states(features, embed[ids]) @ head.T / 2.0) * 2.0
        tokens, logits = [anchor], []
        for row in range(BLOCK):
            e = self.weights["markov_head.markov_w1.weight"][tokens[-1]]
            logits.append(base[row] + self.linear("markov_head.markov_w2", e))
            tokens.append(int(logits[-1].argmax()))
        return tokens[1:], torch.stack(logits)


def checkpoint(folder: Path, raw: dict[str, Any]) -> dict[str, Tensor]:
    """A random drafter on disk, as DeepSpec lays it out."""
    weights = small.model(read_config(raw).config).state_dict()
    generator = torch.Generator().manual_seed(1)
    for name in weights:
        if "layer_scalar" in name:
            weights[name] = 0.5 + torch.rand(1, generator=generator)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return weights


@pytest.mark.parametrize("shared", [True, False], ids=["values from keys", "values of their own"])
@torch.inference_mode()
def test_drafts_as_transformers_parts_do(tmp_path: Path, shared: bool) -> None:
    raw = RAW | {"attention_k_eq_v": shared}
    weights = checkpoint(tmp_path, raw)
    assert ("layers.0.self_attn.v_proj.weight" in weights) is not shared
    embed, head = small.tables()
    features = torch.randn(LENGTH, 3 * HIDDEN, generator=torch.Generator().manual_seed(2))
    plain = Plain(raw, weights)
    tokens, logits = plain.greedy(features, 11, embed, head)

    model = load_drafter(tmp_path).model
    model.lend(embed, head)
    places, anchor, position = torch.arange(LENGTH)[None], torch.tensor([[11]]), torch.tensor([[LENGTH]])
    keys, values = model.context(features[None], places)
    context = Context(keys, values, places, torch.ones(1, 1, LENGTH, dtype=torch.bool))
    h = model.block(model.rows(anchor, BLOCK), position, context)
    ours, scores = greedy_block(model, h, anchor)
    torch.testing.assert_close(scores[0, 0], logits, atol=1e-4, rtol=1e-4)
    assert ours[0, 0].tolist() == tokens

    whole = RAW["rope_parameters"] | {"full_attention": {"rope_theta": 1e4, "rope_type": "default"}}
    poisoned = {
        "rotary": Plain(raw | {"rope_parameters": whole}, weights),
        "no factor on the stream": Plain(raw, weights | {"layers.0.layer_scalar": torch.ones(1)}),
        "norm": Plain(raw, weights | {"layers.1.post_feedforward_layernorm.weight": torch.ones(HIDDEN)}),
    }
    for name, wrong in poisoned.items():
        other = wrong.greedy(features, 11, embed, head)[1]
        assert not torch.allclose(scores[0, 0], other, atol=1e-4), f"the comparison does not see a wrong {name}"


def test_it_is_read_and_not_written(tmp_path: Path) -> None:
    checkpoint(tmp_path, RAW)
    model = load_drafter(tmp_path).model
    for format in ("deepspec", "speculators"):
        with pytest.raises(InvalidParameter, match="gemma4"):
            save_drafter(model, model.config, tmp_path / format, format=format)
