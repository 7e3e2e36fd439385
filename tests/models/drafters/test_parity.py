"""The same drafts as the code that trained the drafters: speculators 0.9.0 and z-lab's dflash 0.1.0, in fp32.

speculators' side is in files, made by scripts/make_parity_fixtures.py; z-lab's package runs beside ours. Every case is
compared again with each thing wrong that is easily got wrong, and must then differ: what cannot fail proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config

from firesteel.models.drafters.backbone import Context
from firesteel.models.drafters.checkpoint import load_drafter
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.greedy import greedy_block
from firesteel.models.drafters.model import DrafterModel

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(folder.name for folder in GOLDEN.iterdir())
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Blocks:
    """What blocks are drafted from: a sequence's features `[T, F]`, anchors' positions and tokens `[A]`.

    `own_feature` is the poison that lets a block see its anchor's own feature, which no round has yet.
    """

    features: Tensor
    positions: Tensor
    tokens: Tensor
    own_feature: bool = False


def states(model: DrafterModel, blocks: Blocks) -> Tensor:
    """`[A, B, H]`"""
    places = torch.arange(len(blocks.features))
    keys, values = model.context(blocks.features[None], places[None])
    seen = places < blocks.positions[:, None] + blocks.own_feature
    context = Context(keys, values, places[None], seen[None])
    rows = model.rows(blocks.tokens[None], model.config.block_size)
    return model.block(rows, blocks.positions[None], context)[0]


def drafts(model: DrafterModel, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Greedy tokens `[A, n]` and their logits `[A, n, Vd]`."""
    tokens, logits = greedy_block(model, states(model, blocks)[None], blocks.tokens[None])
    return tokens[0], logits[0]


def reconfigured(model: DrafterModel, config: DrafterConfig) -> DrafterModel:
    """The same weights under another configuration."""
    twin = DrafterModel(config, model.kept)
    twin.load_state_dict(model.state_dict())
    twin.embed, twin.head = model.embed, model.head
    return twin.eval()


def changed(model: DrafterModel, name: str, change: Callable[[Tensor], Tensor]) -> DrafterModel:
    """The same drafter but for one tensor."""
    twin = reconfigured(model, model.config)
    twin.load_state_dict(twin.state_dict() | {name: change(twin.state_dict()[name])})
    return twin


def swapped_taps(blocks: Blocks) -> Blocks:
    first, *others = blocks.features.chunk(3, dim=-1)
    return replace(blocks, features=torch.cat([*others, first], dim=-1))


def poisoned(model: DrafterModel, blocks: Blocks) -> dict[str, tuple[DrafterModel, Blocks]]:
    """Each way of being wrong that applies to this drafter."""
    config = model.config
    wrong: dict[str, tuple[DrafterModel, Blocks]] = {
        "row layout": (reconfigured(model, replace(config, anchor_first=not config.anchor_first)), blocks),
        "tap order": (model, swapped_taps(blocks)),
        "anchor's own feature": (model, replace(blocks, own_feature=True)),
        "position": (model, replace(blocks, positions=blocks.positions + 1)),
        "direction": (reconfigured(model, replace(config, causal=tuple(not c for c in config.causal))), blocks),
        "mask token": (reconfigured(model, replace(config, mask_token_id=0)), blocks),
        "rope": (reconfigured(model, replace(config, rope=dict(config.rope) | {"rope_theta": 5e5})), blocks),
        "features not normed": (changed(model, "hidden_norm.weight", torch.ones_like), blocks),
    }
    if config.markov_rank:
        wrong["no Markov bias"] = (changed(model, "markov_head.markov_w2.weight", torch.zeros_like), blocks)
    if config.conv_kernel:

        def other_side(kernel: Tensor) -> Tensor:
            return kernel.flip(0)

        def other_tap(kernel: Tensor) -> Tensor:
            return kernel.flip(1)

        for change in (other_side, other_tap):
            wrong[change.__name__] = (changed(model, "layers.0.attention_conv.base_kernel", change), blocks)
        codebook = "candidate_selector.predecessor_codebook"
        wrong["predecessor"] = (changed(model, codebook, lambda rows: rows.roll(1, 0)), blocks)
    return wrong


def same(ours: tuple[Tensor, Tensor], tokens: Tensor, logits: Tensor) -> bool:
    """Same tokens, and logits within the tolerance; of two layouts only the rows that both have."""
    rows = min(ours[0].shape[1], tokens.shape[1])
    near = torch.isclose(ours[1][:, :rows], logits[:, :rows], atol=TOLERANCE, rtol=TOLERANCE)
    return torch.equal(ours[0][:, :rows], tokens[:, :rows]) and bool(near.all())


def assert_parity(model: DrafterModel, blocks: Blocks, tokens: Tensor, logits: Tensor) -> None:
    ours = drafts(model, blocks)
    assert ours[0].shape == tokens.shape
    torch.testing.assert_close(ours[1], logits, atol=TOLERANCE, rtol=TOLERANCE)
    assert torch.equal(ours[0], tokens)
    for name, (wrong_model, wrong_blocks) in poisoned(model, blocks).items():
        assert not same(drafts(wrong_model, wrong_blocks), tokens, logits), (
            f"the comparison does not see a wrong {name}"
        )


def loaded(case: str) -> tuple[DrafterModel, Blocks, dict[str, Tensor]]:
    """A golden drafter, its inputs, and what speculators computed."""
    model = load_drafter(GOLDEN / case).model
    golden = load_file(GOLDEN / case / "reference.safetensors")
    embed = golden["embed"].float()
    model.lend(embed, golden["head"].float() if "head" in golden else embed)
    ids, anchors = golden["ids"], golden["anchors"]
    return model, Blocks(golden["features"].float(), anchors, ids[anchors]), golden


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_speculators(case: str) -> None:
    model, blocks, golden = loaded(case)
    torch.testing.assert_close(states(model, blocks), golden["hidden"], atol=TOLERANCE, rtol=TOLERANCE)
    assert_parity(model, blocks, golden["tokens"], golden["logits"])


@pytest.mark.parametrize("case", [case for case in CASES if "dspark" in case])
@torch.inference_mode()
def test_speculators_heads(case: str) -> None:
    """Teacher forcing, as in training, and the confidence of the greedy drafts."""
    model, blocks, golden = loaded(case)
    config, h = model.config, states(model, blocks)
    true = golden["ids"][blocks.positions[:, None] + torch.arange(config.block_size)]
    before = true if config.anchor_first else torch.cat([true[:, :1], true[:, :-1]], 1)
    logits = model.logits(h) + model.markov_head.bias(model.markov_head.forced(before, h))
    torch.testing.assert_close(logits, golden["forced"], atol=TOLERANCE, rtol=TOLERANCE)
    assert not torch.allclose(model.logits(h), golden["forced"], atol=TOLERANCE)
    if "confidence" not in golden:
        assert model.confidence_head is None
        return
    h = h if config.anchor_first else h[:, 1:]
    drafted = torch.cat([blocks.tokens[:, None], golden["tokens"][:, :-1]], 1)
    confidence = model.confidence_head(h, model.markov_head.embed(drafted))
    torch.testing.assert_close(confidence, golden["confidence"], atol=TOLERANCE, rtol=TOLERANCE)
    late = model.confidence_head(h, model.markov_head.embed(golden["tokens"]))
    assert torch.allclose(late, golden["confidence"], atol=TOLERANCE) == (not config.confidence_markov)


VOCAB, HIDDEN, LENGTH, BLOCK = 61, 24, 17, 6
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True, "sliding_window": 7}
SECOND = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 5, "selector_top_k": 7}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
ZLAB: dict[str, tuple[dict, dict]] = {
    "dflash": ({}, {}),
    "dflash-bias-yarn": ({}, {"attention_bias": True, "rope_parameters": YARN}),
    "dflash-sliding": ({}, SLIDING),
    "dflash-sliding-both-ways": ({}, SLIDING | {"is_causal": False}),
    "dflash-window-out-of-use": ({}, SLIDING | {"use_sliding_window": False}),
    "dflash-causal": ({}, {"is_causal": True}),
    "dflash2": (SECOND, {}),
    "dflash2-sliding-scaled": (
        SECOND | {"output_multiplier": 0.2, "final_logit_softcapping": 3.0, "input_embedding_scale": 2.0},
        SLIDING | {"is_causal": False},
    ),
}


@pytest.mark.parametrize(("own", "backbone"), ZLAB.values(), ids=ZLAB)
@torch.inference_mode()
def test_zlab(tmp_path: Path, own: dict, backbone: dict) -> None:
    """A checkpoint that z-lab's class saved, one block at the end of a text."""
    theirs_of = pytest.importorskip("dflash.model", reason="pip install --no-deps dflash==0.1.0")
    taps = {"block_size": BLOCK, "mask_token_id": VOCAB - 2, "target_layer_ids": [1, 3, 4]}
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=28,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        num_target_layers=8,
        dflash_config=taps | own,
        **{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}} | backbone,
    )
    torch.manual_seed(0)
    theirs = (theirs_of.DFlash2DraftModel if own else theirs_of.DFlashDraftModel)(config).eval()
    for name, parameter in theirs.named_parameters():
        parameter.copy_(("norm" in name) + 0.3 * torch.randn(parameter.shape))
    theirs.save_pretrained(tmp_path)
    # One feature more than a round has: the poisoned block looks at it.
    features, anchor = torch.randn(1, LENGTH + 1, 3 * HIDDEN), torch.tensor([11])
    embed = torch.nn.Embedding(VOCAB, HIDDEN)
    head = torch.nn.Linear(HIDDEN, VOCAB, bias=False)
    head.weight.copy_(torch.randn(VOCAB, HIDDEN))
    block = torch.tensor([[11] + [VOCAB - 2] * (BLOCK - 1)])
    hidden = theirs(
        position_ids=torch.arange(LENGTH + BLOCK)[None],
        noise_embedding=embed(block) * own.get("input_embedding_scale", 1.0),
        target_hidden=features[:, :LENGTH],
    )[:, 1:]
    logits = theirs.compute_logits(hidden, head)
    if own:
        tokens, candidates, _ = theirs.propose(hidden, anchor, head, temperature=0.0)
        logits = _candidate_scores(theirs.candidate_selector, hidden, logits, candidates, anchor, tokens)
    else:
        tokens = logits.argmax(-1)
    ours = load_drafter(tmp_path).model
    ours.lend(embed.weight.detach(), head.weight.detach())
    assert ours.config.causal == tuple(layer.self_attn.is_causal for layer in theirs.layers)
    blocks = Blocks(features[0], torch.tensor([LENGTH]), anchor)
    assert_parity(ours, blocks, tokens, logits)
    if any(ours.config.windows):
        unbound = reconfigured(ours, replace(ours.config, windows=(None, None)))
        assert not same(drafts(unbound, blocks), tokens, logits)


def _candidate_scores(
    selector: torch.nn.Module, hidden: Tensor, logits: Tensor, candidates: Tensor, anchor: Tensor, tokens: Tensor
) -> Tensor:
    """z-lab's selector keeps its scores to itself: they are its formula along its own path, -inf elsewhere."""
    before = torch.cat([anchor[:, None], tokens[:, :-1]], 1)
    left = selector.predecessor_codebook(before) * selector.hidden_projection(hidden)
    pairs = torch.einsum("bnr,bnkr->bnk", left, selector.successor_codebook(candidates))
    unary = logits.gather(-1, candidates)
    return torch.full_like(logits, -torch.inf).scatter(-1, candidates, unary + pairs)
