"""Block drafters in the engine: no token changes, contexts stay right, sampled chains keep the law, kernels agree."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from firesteel.engine.block_drafter import BlockDrafter
from firesteel.errors import InvalidParameter
from firesteel.models.drafters.blocks import NativeBlocks, TorchBlocks, new_context_cache
from firesteel.models.drafters.greedy import greedy_block
from firesteel.models.drafters.model import DrafterModel
from firesteel.models.hf import TransformersTarget
from firesteel.models.package import start_build
from firesteel.models.rows import pack
from firesteel.models.target import new_cache
from firesteel.policy.fixed import drawn_chain
from firesteel.rounds import Plan
from firesteel.sampling import probabilities, scores
from firesteel.tree import Proposal, TokenTree
from firesteel.verify.rules import match, reject
from tests import toys
from tests.verify.chance import ScriptedDice, law

PROMPTS = {"a": [5, 17, 3, 40], "b": [8] * 30, "c": [1], "d": [2, 9, 2, 9, 2, 9, 2], "e": list(range(20))}
KINDS = [
    ("dspark", {}),
    ("dspark", {"anchor_first": False}),
    ("dspark", {"markov_kind": "rnn", "draft_vocab": 60}),
    ("dspark", {"markov_kind": "gated", "causal": (True, False), "windows": (5, None)}),
    ("dflash", {}),
    ("dflash2", {}),
]


@pytest.fixture(scope="module")
def model() -> Any:
    return toys.model()


@pytest.fixture(scope="module")
def target(model: Any) -> TransformersTarget:
    return TransformersTarget(model, taps=(0, 1))


def drafter_for(model: DrafterModel, slots: int = 4, **settings: Any) -> BlockDrafter:
    return BlockDrafter(model, TorchBlocks(model), slots=slots, vocab_size=toys.VOCAB, **settings)


def run(target: TransformersTarget, drafter: BlockDrafter | None, policy: str, width: int | None, **settings: Any):
    limits = {key: settings.pop(key) for key in ("cache_tokens", "chunk") if key in settings}
    batch = [toys.request(PROMPTS[name], name, max_tokens=24, **settings) for name in PROMPTS]
    toys.decode(target, batch, policy, width, drafter=drafter, **limits)
    return {request.id: request.output for request in batch}, batch


@pytest.mark.parametrize(("kind", "changes"), KINDS)
@pytest.mark.parametrize(("policy", "width"), [("chain", 4), ("chain", 9), ("tree", 8), ("auto", None)])
def test_greedy_text_is_the_targets_own(model, target, kind, changes, policy, width) -> None:
    plain, _ = run(target, None, "off", None)
    drafter = drafter_for(toys.drafter_model(model, kind, **changes))
    texts, batch = run(target, drafter, policy, width)
    assert texts == plain
    if policy != "auto":
        assert sum(request.speculation.offered for request in batch) > 0


def test_a_fixed_tree_gives_the_sampled_text_of_plain_decoding(model, target) -> None:
    plain, _ = run(target, None, "off", None, temperature=1.0, seed=3)
    texts, _ = run(target, drafter_for(toys.drafter_model(model)), "tree", 8, temperature=1.0, seed=3)
    assert texts == plain


def context_of(target: TransformersTarget, model: DrafterModel, tokens: list[int]):
    """K/V of a text's context, from one forward over all of it."""
    recorded = Recorder()
    request = toys.request([*tokens, 0], "whole", max_tokens=1)
    toys.decode(target, [request], "off", drafter=recorded, chunk=512)
    features = torch.cat(recorded.seen["whole"])[: len(tokens)]
    cache = new_context_cache(model, 1, torch.float32, torch.device("cpu"))
    TorchBlocks(model).append([features], [0], cache)
    return cache.keys[0, :, :, : len(tokens)], cache.values[0, :, :, : len(tokens)]


class Recorder:
    """A drafter that drafts nothing and keeps what it sees."""

    name = "recorder"

    def __init__(self) -> None:
        self.seen: dict[str, list[torch.Tensor]] = defaultdict(list)

    def draft(self, requests, plan):
        return [None] * len(requests)

    def observe(self, requests, features) -> None:
        for request, rows in zip(requests, features, strict=True):
            self.seen[request.id].append(rows.clone())


class Watched(BlockDrafter):
    """Checks before each draft that every request's context is that of its text; counts the checks."""

    target: TransformersTarget
    checks = 0

    def draft(self, requests, plan):
        for request in requests:
            n = request.cached
            if n and self._seen(request.slot) == n:
                self._append([request.slot])
                keys, values = context_of(self.target, self.model, request.tokens(0, n))
                torch.testing.assert_close(self._cache.keys[request.slot, :, :, :n], keys, atol=2e-4, rtol=1e-3)
                torch.testing.assert_close(self._cache.values[request.slot, :, :, :n], values, atol=2e-4, rtol=1e-3)
                self.checks += 1
        return super().draft(requests, plan)


def watched(target, model) -> Watched:
    drafter = Watched(model, TorchBlocks(model), slots=4, vocab_size=toys.VOCAB)
    drafter.target = target
    return drafter


def test_contexts_survive_chunks_and_preemption(model, target) -> None:
    """Prefill in chunks of 7, a cache so small that requests are thrown out and come back."""
    drafter = watched(target, toys.drafter_model(model))
    plain, _ = run(target, None, "off", None)
    texts, batch = run(target, drafter, "chain", 4, cache_tokens=190, chunk=7)
    assert texts == plain
    assert drafter.checks > 40
    assert all(request.speculation.offered > 0 for request in batch)


def test_a_context_that_misses_a_chunk_is_seen_by_that_check(model, target) -> None:
    drafter = watched(target, toys.drafter_model(model))
    observe, calls = drafter.observe, []

    def skipping(requests, features):
        calls.append(1)
        if len(calls) == 2:  # positions go on, but these are not the rows
            features = [rows.flip(-1) for rows in features]
        observe(requests, features)

    drafter.observe = skipping
    with pytest.raises(AssertionError, match="not close"):
        run(target, drafter, "chain", 4, chunk=7)


class Noted(BlockDrafter):
    """Notes per round which requests got a draft; misses the second chunk of 'b' when told to."""

    def __init__(self, model: DrafterModel, *, deaf: bool = False) -> None:
        super().__init__(model, TorchBlocks(model), slots=4, vocab_size=toys.VOCAB)
        self.deaf, self.chunks, self.drafted = deaf, 0, defaultdict(int)

    def observe(self, requests, features) -> None:
        heard = []
        for request, rows in zip(requests, features, strict=True):
            self.chunks += request.id == "b"
            if not (self.deaf and request.id == "b" and self.chunks == 2):
                heard.append((request, rows))
        if heard:
            super().observe(*zip(*heard, strict=True))

    def draft(self, requests, plan):
        drafts = super().draft(requests, plan)
        for request, one in zip(requests, drafts, strict=True):
            self.drafted[request.id] += one is not None
        return drafts


@pytest.mark.parametrize("deaf", [True, False])
def test_a_gap_in_what_was_seen_stops_that_requests_drafts_only(model, target, deaf: bool) -> None:
    drafter = Noted(toys.drafter_model(model), deaf=deaf)
    plain, _ = run(target, None, "off", None)
    texts, _ = run(target, drafter, "chain", 4)
    assert texts == plain
    assert (drafter.drafted["b"] == 0) is deaf
    assert all(drafter.drafted[name] > 0 for name in "acde")


def test_a_context_beyond_the_drafters_window_stops_that_requests_drafts_only(model, target) -> None:
    drafter = Noted(toys.drafter_model(model, max_context=30))
    batch = [toys.request([8] * 40, "long", max_tokens=8), toys.request([5, 17], "short", max_tokens=8)]
    toys.decode(target, batch, "chain", 4, drafter=drafter)
    assert drafter.drafted["long"] == 0 < drafter.drafted["short"]


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_a_batch_of_ragged_blocks_drafts_what_the_plain_reference_does(model, target, kind, changes) -> None:
    """Picks, and after any other parent the distribution that the reference gives it."""
    small = toys.drafter_model(model, kind, **changes).requires_grad_(False)
    drafter = drafter_for(small)
    batch = [toys.request(PROMPTS[name], name) for name in "abd"]
    plain = PlainTarget(model)
    for slot, request in enumerate(batch):
        request.slot, request.cached = slot, len(request.prompt) - 1
        drafter.observe([request], [plain.features(request.prompt[:-1])])
    lengths = [3, 1, 2]
    drafts = drafter.draft(batch, Plan(np.array(lengths)))
    for request, length, draft in zip(batch, lengths, drafts, strict=True):
        cache = new_context_cache(small, 1, torch.float32, torch.device("cpu"))
        TorchBlocks(small).append([plain.features(request.prompt[:-1])], [0], cache)
        width = length + (not small.config.anchor_first)
        h = TorchBlocks(small)([request.anchor], [width], [0], cache)[1].clone()
        tokens, logits = greedy_block(small, h[None, None], torch.tensor([[request.anchor]]))
        assert draft.top_tokens[:, 0].tolist() == tokens[0, 0].tolist()
        probs = logits[0, 0].double().softmax(-1)
        np.testing.assert_allclose(draft.top_probs[:, 0], probs.max(-1).values, rtol=1e-4)
        if small.config.markov_kind != "rnn" and length > 1:
            other = int(draft.top_tokens[0, 1])
            ids, q = draft.block.children(np.array([1]), np.array([other]))
            base = small.logits(h)[-length:]
            said, _ = small.conditional(base[1:2], h[-length:][1:2], torch.tensor([other]), None)
            assert ids[0, 0] == int(small.target_ids(said.argmax(-1)))
            np.testing.assert_allclose(q[0, 0], said.double().softmax(-1).max(), rtol=1e-4)
        if small.confidence_head is not None:
            before = torch.tensor([request.anchor, *draft.top_tokens[:-1, 0].tolist()])
            wanted = small.confidence_head(h[-length:], small.markov_head.embed(before)).sigmoid()
            np.testing.assert_allclose(draft.confidence, wanted, rtol=1e-4)
            assert draft.head is draft.confidence
        else:
            assert draft.head.tolist() == draft.top_probs[:, 0].tolist()


# --- sampled chains ---------------------------------------------------------------------------------------------------


TEXT = [0, 3, 1]


@pytest.fixture(scope="module")
def tiny() -> Any:
    """A target of five tokens: few enough to enumerate."""
    return toys.model(vocab_size=5)


def two_token_law(target, drafter_model, *, poisoned: bool = False) -> tuple[dict, dict]:
    """The exact law of the first two tokens under a drawn chain, and what the target says it is."""
    small = {"temperature": 4.0, "max_tokens": 8}  # both distributions wide, so that they overlap
    request = toys.request(TEXT, "r", seed=1, **small)
    rows: dict[tuple[int, ...], np.ndarray] = {}

    def p(text: tuple[int, ...]) -> np.ndarray:
        if text not in rows:
            with torch.inference_mode():
                logits = target.logits([*TEXT, *text])
            rows[text] = probabilities(scores(logits, request.params))
        return rows[text]

    features = target.features(TEXT[:-1])

    def once(dice: ScriptedDice) -> tuple[int, int]:
        def pick(q, _, k):
            return int(np.argmax(q)) if poisoned else dice.token(q)

        one = toys.request(TEXT, "r", seed=1, **small)
        one.slot, one.cached = 0, len(TEXT) - 1
        drafter = BlockDrafter(drafter_model, TorchBlocks(drafter_model), slots=1, vocab_size=5, pick=pick)
        drafter.observe([one], [features])
        [draft] = drafter.draft([one], Plan(np.array([2]), drawn=True))
        tree = drawn_chain(draft, 2)
        assert tree.proposal is Proposal.DRAWN
        texts = [(), (int(tree.tokens[1]),), (int(tree.tokens[1]), int(tree.tokens[2]))]
        outcome = reject(tree, lambda row: p(texts[row]), lambda row: draft.proposal(row), dice)
        tokens = [int(tree.tokens[row]) for row in outcome.path[1:]] + [outcome.token]
        if len(tokens) < 2:
            tokens.append(match(TokenTree.root(TEXT[-1]), lambda row: p((tokens[0],)), dice).token)
        return tokens[0], tokens[1]

    got = law(once)
    first = {a: w for a, w in enumerate(p(())) if w > 0}
    wanted = {(a, b): w * v for a, w in first.items() for b, v in enumerate(p((a,))) if v > 0}
    return got, wanted


class PlainTarget:
    """Logits and features of a text, each from a forward over all of it."""

    def __init__(self, model: Any) -> None:
        self._target = TransformersTarget(model, taps=(0, 1))

    @torch.no_grad()
    def _run(self, tokens: list[int]):
        cache = new_cache(self._target, 1)
        slot = cache.acquire()
        cache.reserve([slot], [len(tokens)])
        tree = TokenTree.chain(tokens[0], tokens[1:])
        return self._target.forward(pack([tree], [slot], [0]), cache)

    def logits(self, tokens: list[int]) -> np.ndarray:
        return self._run(tokens)[0][-1].double().numpy()

    def features(self, tokens: list[int]) -> torch.Tensor:
        return self._run(tokens)[1]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("dspark", {}),
        ("dspark", {"anchor_first": False, "markov_kind": "rnn", "draft_vocab": 4}),
        ("dflash", {}),
        ("dflash2", {"selector_top": 3}),
    ],
)
def test_a_sampled_chain_keeps_the_targets_law(tiny, kind, changes) -> None:
    """Exactly: every draw of the drafter and every fall of the verifier's dice is enumerated."""
    got, wanted = two_token_law(PlainTarget(tiny), toys.drafter_model(tiny, kind, **changes))
    assert sum(got.values()) == pytest.approx(1, abs=1e-12)
    assert max(abs(got.get(pair, 0) - wanted.get(pair, 0)) for pair in {*got, *wanted}) < 1e-12


def test_looked_up_picks_passed_off_as_draws_break_the_law(tiny) -> None:
    got, wanted = two_token_law(PlainTarget(tiny), toys.drafter_model(tiny), poisoned=True)
    assert max(abs(got.get(pair, 0) - wanted.get(pair, 0)) for pair in {*got, *wanted}) > 1e-2


def test_sampled_chains_run_in_a_batch_and_do_not_depend_on_it(model, target) -> None:
    small = toys.drafter_model(model)
    together, batch = run(target, drafter_for(small), "chain", 4, temperature=1.0, seed=5)
    assert sum(request.speculation.accepted for request in batch) > 0
    for name, prompt in PROMPTS.items():
        alone = toys.request(prompt, name, max_tokens=24, temperature=1.0, seed=5)
        toys.decode(target, [alone], "chain", 4, drafter=drafter_for(small))
        assert alone.output == together[name]


# --- the kernels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("reduced", [True, False])
def test_the_kernels_blocks_are_torchs(model, causal: bool, reduced: bool) -> None:
    changes = {"causal": (causal, causal), "windows": (None, 6), "draft_vocab": 60 if reduced else 97}
    small = toys.drafter_model(model, **changes)
    twin = toys.drafter_model(model, **changes)
    native = NativeBlocks(twin, start_build(), "fp32")
    caches = [new_context_cache(small, 3, torch.float32, torch.device("cpu")) for _ in range(2)]
    torch.manual_seed(0)
    features = [torch.randn(n, 96) for n in (11, 70, 3)]
    for cache in caches:
        TorchBlocks(small).append(features, [0, 1, 2], cache)
    for anchors, widths, slots in [([5, 6, 7], [4, 1, 3], [0, 1, 2]), ([9], [2], [1])]:
        plain_logits, plain_h = TorchBlocks(small)(anchors, widths, slots, caches[0])
        logits, h = native(anchors, widths, slots, caches[1])
        torch.testing.assert_close(logits, plain_logits, atol=2e-4, rtol=1e-3)
        torch.testing.assert_close(h, plain_h, atol=2e-4, rtol=1e-3)
    assert [list(cache.lengths) for cache in caches] == [[11, 70, 3]] * 2


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-4), ("bf16", 3e-2), ("int8", 3e-2)])
def test_the_kernels_context_is_torchs(model, dtype: str, tolerance: float) -> None:
    """Appended in two parts, of several slots at once."""
    small = toys.drafter_model(model, attention_bias=True)
    native = NativeBlocks(toys.drafter_model(model, attention_bias=True), start_build(), dtype)
    caches = [new_context_cache(small, 3, torch.float32, torch.device("cpu")) for _ in range(2)]
    torch.manual_seed(0)
    parts = [[torch.randn(n, 96) for n in counts] for counts in ((11, 70, 3), (1, 2, 65))]
    for blocks, cache in zip((TorchBlocks(small), native), caches, strict=True):
        for part in parts:
            blocks.append(part, [0, 1, 2], cache)
    assert caches[0].lengths == caches[1].lengths == [12, 72, 68]
    for slot, length in enumerate(caches[0].lengths):
        for name in ("keys", "values"):
            plain, quick = (getattr(cache, name)[slot, :, :, :length] for cache in caches)
            torch.testing.assert_close(quick, plain, atol=tolerance * float(plain.abs().max()), rtol=tolerance)


def test_a_causal_blocks_shorter_run_is_a_prefix_of_the_longer(model) -> None:
    """And a bidirectional one's is not, which is why it is run whole or knowingly shortened."""
    for causal, equal in ((True, True), (False, False)):
        small = toys.drafter_model(model, causal=(causal, causal))
        cache = new_context_cache(small, 1, torch.float32, torch.device("cpu"))
        torch.manual_seed(0)
        TorchBlocks(small).append([torch.randn(11, 96)], [0], cache)
        whole, part = (TorchBlocks(small)([5], [width], [0], cache)[0] for width in (4, 2))
        assert torch.allclose(whole[:2], part, atol=1e-5) is equal


def test_every_request_of_the_kernels_is_as_if_alone(model) -> None:
    small = toys.drafter_model(model)
    native = NativeBlocks(toys.drafter_model(model), start_build(), "fp32")
    cache = new_context_cache(small, 3, torch.float32, torch.device("cpu"))
    torch.manual_seed(0)
    TorchBlocks(small).append([torch.randn(n, 96) for n in (11, 70, 3)], [0, 1, 2], cache)
    together, _ = native([5, 6, 7], [4, 2, 3], [0, 1, 2], cache)
    start = 0
    for anchor, width, slot in zip([5, 6, 7], [4, 2, 3], [0, 1, 2], strict=True):
        alone, _ = native([anchor], [width], [slot], cache)
        assert torch.equal(alone, together[start : start + width])
        start += width


@pytest.mark.parametrize("reduced", [True, False])
def test_the_kernels_walk_is_torchs(model, reduced: bool) -> None:
    """Blocks of different lengths at once, with a row in front that predicts nothing, and at two temperatures."""
    small = toys.drafter_model(model, draft_vocab=60 if reduced else 97)
    native = NativeBlocks(small, start_build(), "fp32")
    torch.manual_seed(0)
    base, h = torch.randn(12, small.config.draft_vocab), torch.randn(12, small.config.hidden)
    anchors, starts, lengths = [5, 6, 7, 8], np.array([0, 3, 5, 9]), np.array([3, 1, 4, 3])
    for heats in ([1.0] * 4, [1.0, 0.3, 1.0, 2.0]):
        given = (base, h, anchors, starts, lengths, heats, 8)
        plain, quick = TorchBlocks(small).walk(*given), native.walk(*given)
        rows = np.concatenate([np.arange(a, a + n) for a, n in zip(starts, lengths, strict=True)])
        assert len(set(plain.picks[rows].tolist())) > 5
        for name in ("picks", "before", "top"):
            assert torch.equal(getattr(quick, name)[rows], getattr(plain, name)[rows]), name
        for name in ("logits", "probs"):
            torch.testing.assert_close(getattr(quick, name)[rows], getattr(plain, name)[rows], atol=1e-5, rtol=1e-5)
    with pytest.raises(InvalidParameter, match="anchor"):
        native.walk(base, h, [5, 6, 7, 10**6], starts, lengths, [1.0] * 4, 8)
    with pytest.raises(InvalidParameter, match="ends behind"):
        native.walk(base, h, anchors, starts + 1, lengths, [1.0] * 4, 8)
