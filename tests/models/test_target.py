"""Any transformers model is a target: trees of any shape and width give transformers' own greedy text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from firesteel.engine.drafter import Adversary, Replay
from firesteel.errors import UnsupportedModel
from firesteel.models.hf import TransformersTarget
from firesteel.models.rows import pack
from firesteel.models.target import new_cache, refuse_reason
from firesteel.tree import Source, TokenTree
from tests import toys

PROMPT = [5, 17, 3, 3, 5, 17, 40, 8, 5, 17]


def plain_text(architecture: str, n: int) -> list[int]:
    """What transformers' own `generate` says, with its own attention and cache."""
    model = toys.model(architecture)
    out = model.generate(torch.tensor([PROMPT]), max_new_tokens=n, do_sample=False)
    return out[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("architecture", toys.ARCHITECTURES)
def test_trees_of_every_width_give_the_text_of_generate(architecture: str) -> None:
    plain = plain_text(architecture, 40)
    of = toys.target(architecture)
    for width in (1, 2, 3, 5, 8, 16, 33, 64):
        # The scripted token is the pick, a sibling, or absent: long accepts, accepts off the spine, none at all.
        for drafter in (
            Replay({"r": plain}, toys.VOCAB, block=16),
            Replay({"r": plain}, toys.VOCAB, block=16, rank=2),
            Adversary({"r": plain}, toys.VOCAB, block=16),
        ):
            request = toys.request(PROMPT, max_tokens=40)
            toys.decode(of, [request], "tree", width, drafter=drafter)
            assert request.output == plain, (architecture, width, drafter.name)


def test_nothing_the_adversary_drafts_is_accepted() -> None:
    plain = plain_text("Llama", 40)
    kept: list[int] = []
    toys.decode(
        toys.target(),
        [toys.request(PROMPT, max_tokens=40)],
        "tree",
        16,
        drafter=Adversary({"r": plain}, toys.VOCAB, block=16),
        record=lambda report: kept.extend(report.trees[0].sources[report.outcomes[0].path[1:]]),
    )
    assert set(kept) <= {Source.NGRAM}


def test_replay_is_accepted_in_whole_blocks() -> None:
    """A floor under accepted tokens: speculation that is quietly dead would pass every test of the text."""
    plain = plain_text("Llama", 40)
    request = toys.request(PROMPT, max_tokens=40)
    toys.decode(toys.target(), [request], "chain", 8, drafter=Replay({"r": plain}, toys.VOCAB, block=7))
    assert request.speculation.rounds == 5
    assert request.speculation.accepted == 35


def random_tree(width: int, seed: int) -> TokenTree:
    random = np.random.default_rng(seed)
    return TokenTree(
        tokens=random.integers(0, toys.VOCAB, width),
        parents=np.array([-1, *(int(random.integers(0, row)) for row in range(1, width))]),
        sources=np.array([Source.ANCHOR, *[Source.PICK] * (width - 1)]),
        ranks=np.zeros(width, np.int64),
        q=np.ones(width),
    )


@pytest.mark.parametrize("architecture", toys.ARCHITECTURES)
def test_each_row_sees_its_own_path_only(architecture: str) -> None:
    """Logits of every row of a batch of random trees are those of a fresh forward over that row's own text."""
    model = toys.model(architecture)
    texts = [list(range(3, 3 + length)) for length in (7, 30)]
    trees = [random_tree(width, seed) for seed, width in enumerate((13, 6))]
    expected = []
    for text, tree in zip(texts, trees, strict=True):
        for row in range(tree.width):
            ids = text + tree.tokens[tree.path(row)].tolist()
            expected.append(model(torch.tensor([ids])).logits[0, -1])
    of = TransformersTarget(model)
    cache = new_cache(of, 3)
    slots = [cache.acquire() for _ in range(3)][::2]  # slot 1 lies between them and has no rows
    cache.reserve(slots, [len(text) for text in texts])
    prefill = [TokenTree.chain(text[0], text[1:]) for text in texts]
    of.forward(pack(prefill, slots, [0, 0]), cache)
    cache.commit(slots, [np.arange(len(text)) for text in texts])
    cache.reserve(slots, [tree.width for tree in trees])
    logits, _ = of.forward(pack(trees, slots, [len(text) for text in texts]), cache)
    torch.testing.assert_close(logits, torch.stack(expected), atol=2e-4, rtol=1e-4)


def test_taps_are_the_outputs_of_the_chosen_layers() -> None:
    model = toys.model()
    ids = torch.tensor([PROMPT])
    hidden = model(ids, output_hidden_states=True).hidden_states
    of = TransformersTarget(model, taps=(0, 1))
    cache = new_cache(of, 1)
    rows = pack([TokenTree.chain(PROMPT[0], PROMPT[1:])], [cache.acquire()], [0])
    _, features = of.forward(rows, cache)
    torch.testing.assert_close(features, torch.cat([hidden[1][0], hidden[2][0]], -1), atol=1e-4, rtol=1e-4)


def test_state_after_rounds_is_that_of_a_fresh_prefill() -> None:
    """K/V of accepted rows, moved to their places, equal those of the plain text computed in one go."""
    of = toys.target()
    plain = plain_text("Llama", 40)
    request = toys.request(PROMPT, max_tokens=41)
    runner = toys.engine(of, "tree", 12, drafter=Replay({"r": plain}, toys.VOCAB, rank=1))
    runner.add(request)
    while len(request.output) < 20:
        runner.step()
    text = (PROMPT + request.output)[: request.cached]
    fresh = new_cache(of, 1)
    fresh.reserve([fresh.acquire()], [len(text)])
    of.forward(pack([TokenTree.chain(text[0], text[1:])], [0], [0]), fresh)
    ours = runner.cache.keys[request.slot, :, :, : len(text)]
    torch.testing.assert_close(ours, fresh.keys[0, :, :, : len(text)], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "word"),
    [("Mamba", "rolled back"), ("Lfm2", "conv"), ("Qwen3Next", "linear_attention"), ("T5", "decoder-only")],
)
def test_models_that_cannot_be_rolled_back_are_refused_with_the_reason(architecture: str, word: str) -> None:
    small: dict[str, dict[str, object]] = {
        "Mamba": {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 11, "state_size": 4},
        "T5": {"d_model": 16, "num_layers": 1, "vocab_size": 11, "d_ff": 16, "num_heads": 2, "d_kv": 8},
        "Lfm2": {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "vocab_size": 11,
            "layer_types": ["conv", "full_attention"],
        },
        "Qwen3Next": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    }
    made = getattr(transformers, f"{architecture}Config")(**small[architecture])

    assert word in str(refuse_reason(made))


def test_taps_out_of_range_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"taps \(2,\)"):
        toys.target(taps=(2,))
