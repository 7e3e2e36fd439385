"""The default target, fp32, greedy: speculative text is the plain text for every width and batch."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from firesteel.engine.drafter import NoDrafter
from firesteel.engine.engine import EngineConfig
from firesteel.model import Model
from firesteel.models.loading import load
from firesteel.models.rows import pack
from firesteel.models.target import new_cache
from firesteel.sampling import SamplingParams
from firesteel.tree import TokenTree
from tests import fixtures

# Eager forwards are several times slower and are tested at two widths here, at every width on small models.
CASES = [("compiled", width) for width in (1, 2, 3, 5, 8, 16)] + [("eager", width) for width in (3, 16)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=48)


@cache
def load_mode(mode: str) -> Model:
    return Model.load(compiled=mode == "compiled", store=False)


@pytest.fixture(params=["eager", "compiled"])
def model(request: pytest.FixtureRequest) -> Model:
    return load_mode(request.param)


@pytest.fixture(scope="module")
def plain() -> dict[str, list[int]]:
    """transformers' own greedy `generate`, on a model whose attention is transformers' own."""
    loaded = load()
    texts = {}
    for name, ids in fixtures.encoded(load_mode("eager")).items():
        out = loaded.model.generate(torch.tensor([ids]), max_new_tokens=48, do_sample=False)
        texts[name] = out[0, len(ids) :].tolist()
    return texts


@pytest.mark.parametrize(("mode", "width"), CASES)
def test_each_fixture_alone(plain: dict[str, list[int]], mode: str, width: int) -> None:
    model = load_mode(mode)
    for name, ids in fixtures.encoded(model).items():
        engine = model.engine("tree", width=width)
        assert model.complete(ids, GREEDY, engine).output == plain[name], (name, width)


@pytest.mark.parametrize(("mode", "width"), CASES)
def test_the_fixtures_as_a_batch_of_four(plain: dict[str, list[int]], mode: str, width: int) -> None:
    model = load_mode(mode)
    engine = model.engine("tree", width=width, config=EngineConfig(slots=4))
    batch = [model.request(ids, GREEDY, name=name) for name, ids in fixtures.encoded(model).items()]
    for _ in engine.run(batch):
        pass
    assert {request.id: request.output for request in batch} == plain
    assert engine.cache.free_slots == 4


@pytest.mark.parametrize(("policy", "width"), [("chain", 4), ("chain", 6), ("tree", 8), ("auto", None)])
def test_each_fixture_with_the_shipped_drafter(plain: dict[str, list[int]], policy: str, width: int | None) -> None:
    model = load_mode("compiled")
    offered = 0
    for name, ids in fixtures.encoded(model).items():
        engine = model.engine(policy, width=width)
        assert engine.drafter.name == "dspark"
        request = model.complete(ids, GREEDY, engine)
        assert request.output == plain[name], name
        offered += request.speculation.offered
    assert offered > 0


def test_repetitive_text_is_accepted_in_long_blocks(model: Model, plain: dict[str, list[int]]) -> None:
    """A floor under what n-grams alone do on F-rep: 7 rounds for 48 tokens at 8 rows."""
    engine = model.engine("chain", width=8, drafter=NoDrafter())
    request = model.complete(model.encode(fixtures.REP), GREEDY, engine)
    assert len(request.output) == 48
    assert request.speculation.rounds <= 7


def test_probabilities_inside_a_block_are_those_of_a_forward_of_the_text(model: Model) -> None:
    """F-coin: at T = 1 what is likely changes within a block, and each row has the probabilities of its own prefix."""
    from transformers import AutoModelForCausalLM

    ids = model.encode(fixtures.COIN)
    drafted = [*model.encode(" tails"), *model.encode("\ncoin:"), *model.encode(" heads")]
    kv = new_cache(model.target, 1)
    kv.reserve([kv.acquire()], [len(ids) + len(drafted)])
    model.target.forward(pack([TokenTree.chain(ids[0], ids[1:-1])], [0], [0]), kv)
    kv.commit([0], [np.arange(len(ids) - 1)])
    logits, _ = model.target.forward(pack([TokenTree.chain(ids[-1], drafted)], [0], [len(ids) - 1]), kv)
    reference = AutoModelForCausalLM.from_pretrained(model.loaded.folder, dtype=torch.float32)
    expected = reference(torch.tensor([ids + drafted])).logits[0, len(ids) - 1 :]
    torch.testing.assert_close(logits.softmax(-1), expected.softmax(-1), atol=1e-5, rtol=1e-3)


def test_sampled_text_is_that_of_plain_decoding(model: Model) -> None:
    """At T = 1 a verify draws what plain decoding would have drawn, so the same seed gives the same text.

    Compiled rows have the same bits at every width; eager ones differ by rounding, which turns a race of tokens as
    rarely as an argmax.
    """
    ids = model.encode(fixtures.COIN)
    for seed in range(6):
        params = SamplingParams(temperature=1.0, max_tokens=32, seed=seed)
        texts = [model.complete(ids, params, model.engine(p, width=w)).output for p, w in (("off", 1), ("tree", 8))]
        assert texts[0] == texts[1]


def test_wide_and_narrow_rows_differ_by_rounding_only(model: Model) -> None:
    ids = fixtures.encoded(model)["F-prose"]
    kv = new_cache(model.target, 1)
    kv.reserve([kv.acquire()], [len(ids) + 8])
    model.target.forward(pack([TokenTree.chain(ids[0], ids[1:-1])], [0], [0]), kv)
    kv.commit([0], [np.arange(len(ids) - 1)])
    one = TokenTree.root(ids[-1])
    eight = TokenTree.chain(ids[-1], [5, 6, 7, 8, 9, 10, 11])
    narrow, wide = (model.target.forward(pack([tree], [0], [len(ids) - 1]), kv)[0][0] for tree in (one, eight))
    assert float((narrow - wide).abs().max()) < 1e-3


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_compiled_rows_have_the_same_bits_at_every_width(dtype: str) -> None:
    """So in any dtype speculative text is the plain text of that dtype, near ties included."""
    model = Model.load(dtype=dtype, compiled=True)
    for name, ids in fixtures.encoded(model).items():
        plain = model.complete(ids, GREEDY, model.engine("off"))
        for width in (2, 5, 16):
            request = model.request(ids, SamplingParams(temperature=0.0, max_tokens=48, logprobs=0))
            for _ in model.engine("tree", width=width).run([request]):
                pass
            assert request.output == plain.output, (name, width)
        logged = model.complete(ids, SamplingParams(temperature=0.0, max_tokens=48, logprobs=0), model.engine("off"))
        assert [one.logprob for one in request.logprobs] == [one.logprob for one in logged.logprobs], name
