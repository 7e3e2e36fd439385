"""Make tests/models/drafters/golden: small drafters that speculators 0.9.0 saved, and what it computes with them.

Its dependencies are heavy, so the tests read these files instead. To make them anew, in an environment of their own:

    pip install torch==2.13.0 speculators==0.9.0
    python scripts/make_parity_fixtures.py tests/models/drafters/golden

Each folder holds a checkpoint as speculators writes it (weights rounded to bf16, so that half the bytes lose nothing)
and reference.safetensors: the inputs in bf16, and in fp32

    hidden        [A, B, H]   final-normed states of A blocks of B rows, all anchors in one sequence
    forced        [A, B, Vd]  logits with the sequence's own tokens as predecessors
    tokens        [A, n]      greedy drafts of the n rows that predict, in target ids
    logits        [A, n, Vd]  the logits that these are the argmax of
    confidence    [A, n]      logits of the confidence head along the greedy drafts
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from transformers import Qwen3Config

VOCAB, DRAFT_VOCAB, HIDDEN, TAPS, BLOCK, LENGTH = 61, 23, 24, 3, 5, 30
ANCHORS = (4, 9, 16, 24)
CLASSES = {
    "dflash": (DFlashDraftModel, DFlashSpeculatorConfig),
    "dspark": (DSparkDraftModel, DSparkSpeculatorConfig),
    "dflash2": (DFlash2DraftModel, DFlash2SpeculatorConfig),
}
SECOND = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 5, "selector_top_k": 7}
# The window is wider than the text: speculators trains with the anchor as the window's origin for all rows of a block,
# engines with each row's own position, and only the direction within the block can agree.
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True, "sliding_window": 64}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dflash": ("dflash", {}, {}),
    "dflash-sliding-causal": ("dflash", {}, SLIDING),
    "dflash-sliding-both-ways": ("dflash", {"sliding_window_non_causal": True}, SLIDING),
    "dspark-vanilla": ("dspark", {}, {}),
    "dspark-gated": ("dspark", {"markov_head_type": "gated", "confidence_head_with_markov": False}, {}),
    "dspark-rnn": ("dspark", {"markov_head_type": "rnn"}, {}),
    "dspark-no-confidence": ("dspark", {"enable_confidence_head": False}, {"attention_bias": True}),
    "dspark-in-place": ("dspark", {"sample_from_anchor": False, "markov_head_type": "rnn"}, {}),
    "dspark-reduced": ("dspark", {"draft_vocab_size": DRAFT_VOCAB}, {}),
    "dflash2": ("dflash2", SECOND, {}),
    "dflash-window-out-of-use": ("dflash", {}, SLIDING | {"use_sliding_window": False}),
    "dflash2-sliding": ("dflash2", SECOND | {"sliding_window_non_causal": False}, SLIDING),
}


def build(kind: str, own: dict[str, Any], backbone: dict[str, Any]) -> Any:
    """A random drafter of speculators; a wide initialisation keeps greedy choices far from ties."""
    layers = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=28,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **backbone,
    )
    layers._attn_implementation = "eager"
    rank = {"markov_rank": 6} if kind == "dspark" else {}
    settings = {"draft_vocab_size": VOCAB, "sample_from_anchor": kind == "dspark"} | rank | own
    drafted = BLOCK if settings["sample_from_anchor"] else BLOCK - 1
    model_class, config_class = CLASSES[kind]
    config = config_class(
        transformer_layer_config=layers,
        block_size=BLOCK,
        aux_hidden_state_layer_ids=[2, 4, 5],
        mask_token_id=VOCAB - 2,
        speculators_config=SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=drafted)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
        ),
        **settings,
    )
    model = model_class(config)
    if settings["draft_vocab_size"] < VOCAB:
        kept = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
        members = torch.zeros(VOCAB, dtype=torch.bool).scatter(0, kept, True)
        model.load_vocab_mappings(members, kept - torch.arange(DRAFT_VOCAB))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 1.0 if name in ("embed_tokens.weight", "lm_head.weight") else 0.3
            value = ("norm" in name) + scale * torch.randn(parameter.shape)
            parameter.copy_(value.bfloat16())
    return model.eval()


def target_ids(model: Any, ids: Tensor) -> Tensor:
    return ids if model.d2t is None else ids + model.d2t[ids]


def greedy(model: Any, hidden: Tensor, base: Tensor, anchors: Tensor) -> dict[str, Tensor]:
    """Left to right with the model's own heads; row j's predecessor is what the row before drafted."""
    start = 0 if model.config.sample_from_anchor else 1
    # Row j's predecessor by the model's own convention: of the anchor's row too, which drafts nothing in place.
    before = anchors[:, None].repeat(1, BLOCK)
    tokens, logits = [], []
    for row in range(start, BLOCK):
        scores = base[:, row]
        if getattr(model, "markov_head", None) is not None:
            bias = model.markov_head.block_bias(prev_token_ids=before[:, start:], hidden_states=hidden[:, start:])
            scores = scores + bias[:, row - start]
        if hasattr(model, "candidate_selector"):
            ids, chosen = model.candidate_selector.select(scores, hidden[:, row], before[:, row])
            scores = torch.full_like(scores, -torch.inf).scatter(1, ids, chosen)
        tokens.append(target_ids(model, scores.argmax(-1)))
        logits.append(scores)
        if row + 1 < BLOCK:
            before[:, row + 1] = tokens[-1]
    found = {"tokens": torch.stack(tokens, 1), "logits": torch.stack(logits, 1)}
    if getattr(model, "confidence_head", None) is not None:
        features = hidden[:, start:]
        if model.config.confidence_head_with_markov:
            features = torch.cat([features, model.markov_head.prev_embeddings(before[:, start:])], -1)
        found["confidence"] = model.confidence_head(features)
    return found


@torch.no_grad()
def reference(model: Any, kind: str) -> dict[str, Tensor]:
    """Inputs and outputs of one sequence with several anchors."""
    ids = torch.randint(0, VOCAB - 2, (1, LENGTH))
    features = torch.randn(1, LENGTH, TAPS * HIDDEN).bfloat16()
    chosen = torch.zeros(1, LENGTH)
    chosen[0, list(ANCHORS)] = 1
    hidden, base, *_ = model._backbone_forward(
        hidden_states=features.float(),
        input_ids=ids,
        loss_mask=chosen,
        verifier_last_hidden_states=torch.zeros(1, LENGTH, HIDDEN),
        document_ids=torch.zeros(1, LENGTH, dtype=torch.long),
        max_anchors=len(ANCHORS),
    )
    hidden, base = hidden.view(len(ANCHORS), BLOCK, -1), base.view(len(ANCHORS), BLOCK, -1)
    anchors = torch.tensor(ANCHORS)
    true = ids[0, anchors[:, None] + torch.arange(BLOCK)]  # [A, B]
    before = true if model.config.sample_from_anchor else torch.cat([true[:, :1], true[:, :-1]], 1)
    forced = base
    if kind == "dspark":
        forced = base + model.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)
    found = {
        "ids": ids[0],
        "features": features[0],
        "anchors": anchors,
        "embed": model.embed_tokens.weight.bfloat16(),
        "hidden": hidden,
        "forced": forced,
        **greedy(model, hidden, base, ids[0, anchors]),
    }
    if not model.use_draft_vocab:
        found["head"] = model.lm_head.weight.bfloat16()
    return {name: value.detach().contiguous() for name, value in found.items()}


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for seed, (name, (kind, own, backbone)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        model = build(kind, own, backbone)
        outputs = reference(model, kind)
        model.to(torch.bfloat16).save_pretrained(folder / name)
        for file in (folder / name).iterdir():
            if file.name not in ("config.json", "model.safetensors"):
                file.unlink()
        save_file(outputs, folder / name / "reference.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
