"""The engine's verify against the reference, on the host and through the torch twin.

Both backends are run on every case: `on_host=False` sends CPU tensors through the code that devices use.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel import sampling as host
from firesteel.engine import sampling as device
from firesteel.engine.verify import VerifyRequest, verify
from firesteel.errors import LosslessViolation
from firesteel.sampling import SamplingParams, plain_token, token_logprob
from firesteel.tree import Proposal, TokenTree
from firesteel.verify.rules import KeyedDice, reject, without

V, EOS = 40, 0
BOTH = pytest.mark.parametrize("on_host", [True, False], ids=["host", "device"])

ONE_EACH = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 1.7},
    "top_p": {"top_p": 0.7},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.8},
    "repetition": {"repetition_penalty": 1.6},
    "bias": {"logit_bias": {3: 4.0, 5: -100.0}},
    "min_tokens": {"min_tokens": 7},
    "all": {
        "temperature": 0.9, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "presence_penalty": 0.3, "min_tokens": 7,
        "frequency_penalty": 0.2, "repetition_penalty": 1.2, "logit_bias": {3: 1.0},
    },
}  # fmt: skip
PARAMS = [{**p, **t} for p in ONE_EACH.values() for t in ({}, {"temperature": 0.0})]
IDS = [f"{name}-{t}" for name in ONE_EACH for t in ("T", "0")]


def make(tokens, parents, proposal=Proposal.FIXED) -> TokenTree:
    n = len(tokens)
    zeros = np.zeros(n, np.int64)
    return TokenTree(np.array(tokens), np.array(parents), zeros, zeros, np.ones(n), proposal)


def request(params: SamplingParams, seed: int = 1, prompt=(4, 5, 4, 9), output=(7, 3, 7)) -> VerifyRequest:
    return VerifyRequest(params, seed, list(prompt), list(output), (EOS, *params.stop_token_ids))


def logits_of(text, scale: float = 2.0) -> np.ndarray:
    """The toy target: a row of logits that depends on the whole text."""
    return np.random.default_rng([abs(hash(tuple(text))) % 2**32]).normal(0, scale, V).astype(np.float32)


def rows_of(tree: TokenTree, req: VerifyRequest) -> torch.Tensor:
    text = [*req.prompt_tokens, *req.output_tokens]
    rows = [logits_of(text + tree.tokens[tree.path(row)[1:]].tolist()) for row in range(tree.width)]
    return torch.from_numpy(np.stack(rows))


def plain(req: VerifyRequest, steps: int) -> list[int]:
    """What decoding one token at a time gives."""
    new: list[int] = []
    for _ in range(steps):
        output = [*req.output_tokens, *new]
        logits = logits_of([*req.prompt_tokens, *output])
        new.append(plain_token(logits, req.params, req.seed, req.prompt_tokens, output, req.stop_ids))
    return new


def tree_around(text: list[int], rng: np.random.Generator, width: int = 10) -> TokenTree:
    """A tree that holds the true continuation, so that the walk goes deep, among wrong rows."""
    tokens, parents, spine = [int(rng.integers(V))], [-1], 0
    for token in text:
        wrong = [t for t in rng.choice(V, 3, replace=False).tolist() if t != token]
        before = wrong[: int(rng.integers(0, 3))]
        tokens += [*before, token]
        parents += [spine] * (len(before) + 1)
        spine = len(tokens) - 1
    return make(tokens[:width], parents[:width])


@BOTH
@pytest.mark.parametrize("params", PARAMS, ids=IDS)
def test_every_parameter_gives_the_plain_text_on_every_row(params, on_host):
    """Pins: penalties per round and not per token, rejected drafts recorded, parameters that skip verified rows."""
    rng = np.random.default_rng(0)
    for seed in range(4):
        req = request(SamplingParams(**params), seed)
        truth = plain(req, 6)
        for depth in (0, 2, 5):
            tree = tree_around(truth[:depth], rng)
            done = verify([tree], rows_of(tree, req), [req], on_host=on_host)[0]
            assert done.logprobs is None
            committed = [*tree.tokens[done.outcome.path[1:]].tolist(), done.outcome.token]
            assert committed == truth[: len(committed)] == done.outcome.wanted.tolist()
            assert tree.width > 9 or len(committed) == depth + 1


@pytest.mark.parametrize("params", PARAMS, ids=IDS)
def test_the_twin_has_the_reference_s_numbers(params):
    rng = np.random.default_rng(1)
    params = SamplingParams(**params)
    for _ in range(5):
        x = rng.normal(0, 3, 3000).astype(np.float32)
        prompt, output = rng.integers(0, 3000, 20), rng.integers(0, 3000, 5)
        ours = device.edit(torch.from_numpy(x), params, prompt, output, [EOS])
        reference = host.edit(x, params, prompt, output, [EOS])
        np.testing.assert_allclose(ours.numpy(), reference, rtol=1e-12, atol=0)
        assert device.best(ours) == host.best(reference)
        if not params.is_greedy:
            ours, reference = device.scores(ours, params), host.scores(reference, params)
            p, q = device.probabilities(ours), host.probabilities(reference)
            np.testing.assert_allclose(p.numpy(), q, rtol=1e-9, atol=1e-15)
            for key in rng.integers(2**63, size=10).tolist():
                drawn = device.draw(p, key), host.draw(q, key)
                drawn += device.draw_scores(ours, key), host.draw_scores(reference, key)
                assert len(set(drawn)) == 1


def test_the_twin_never_draws_what_is_impossible():
    p = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64)
    keys = [host.key_of(2, i) for i in range(50)]
    drawn = [device.draw(p, key) for key in keys]
    assert set(drawn) == {1, 3}
    assert drawn == [device.draw_scores(p.log(), key) for key in keys]


@BOTH
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_masks_eos_row_by_row(temperature, on_host):
    """Every row wants EOS; the row that decides the fourth token is the first that may have it."""
    req = request(SamplingParams(temperature=temperature, min_tokens=3, top_k=1), output=[8])
    logits = torch.zeros(4, V)
    logits[:, EOS], logits[:, 6], logits[:, 2] = 9.0, 5.0, 1.0
    done = verify([TokenTree.chain(8, [6, 6, 6])], logits, [req], on_host=on_host)[0]
    assert done.outcome.wanted.tolist() == [6, 6, EOS]


@BOTH
def test_a_rejected_sibling_leaves_no_trace_in_the_penalties(on_host):
    """Two branches hold token 6; below the other branch it was not said yet, and it costs nothing there."""
    req = request(SamplingParams(temperature=0, presence_penalty=2.0), output=[1])
    tree = make([1, 6, 7, 6, 7], [-1, 0, 0, 2, 3])
    logits = torch.zeros(5, V)
    logits[0, 7] = 3.0
    logits[2, 6], logits[2, 5] = 3.0, 2.0
    logits[3, 6], logits[3, 7], logits[3, 5] = 3.0, 3.0, 1.5  # both said by now: 1.0 each
    outcome = verify([tree], logits, [req], on_host=on_host)[0].outcome
    assert outcome.path.tolist() == [0, 2, 3]
    assert outcome.token == 5


@BOTH
def test_penalties_count_each_token_of_the_path(on_host):
    req = request(SamplingParams(temperature=0, frequency_penalty=1.0), output=[])
    logits = torch.zeros(4, V)
    logits[:, 6], logits[:, 5] = 4.0, 1.5
    outcome = verify([TokenTree.chain(9, [6, 6, 6])], logits, [req], on_host=on_host)[0].outcome
    assert outcome.wanted.tolist() == [6, 6, 6, 5]  # 4, 3, 2, then 1 < 1.5


@BOTH
def test_the_same_seed_gives_the_same_text_at_any_tree_shape(on_host):
    req = request(SamplingParams(temperature=1.2, top_p=0.95), seed=77)
    truth, rng = plain(req, 24), np.random.default_rng(3)
    for depths in ([0], [1, 3], [4, 0, 2]):
        text: list[int] = []
        while len(text) < 20:
            depth = depths[len(text) % len(depths)]
            now = replace(req, output_tokens=[*req.output_tokens, *text])
            guess = truth[len(text) : len(text) + depth]
            if depth == 3:
                guess = [*guess[:1], (guess[1] + 1) % V, *guess[2:]]  # a wrong draft in the middle
            tree = tree_around(guess, rng)
            outcome = verify([tree], rows_of(tree, now), [now], on_host=on_host)[0].outcome
            text += [*tree.tokens[outcome.path[1:]].tolist(), outcome.token]
        assert text == truth[: len(text)]


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(6)), size=st.integers(1, 6), on_host=st.booleans(), salt=st.integers(0, 99))
def test_a_request_does_not_depend_on_its_batch(order, size, on_host, salt):
    rng = np.random.default_rng(salt)
    requests, trees = [], []
    for i, params in enumerate([PARAMS[0], PARAMS[1], PARAMS[-1], PARAMS[-2], PARAMS[6], {"temperature": 0.0}]):
        req = request(SamplingParams(**params, logprobs=i % 3), seed=salt + i, output=rng.integers(0, V, i).tolist())
        requests.append(req)
        trees.append(tree_around(plain(req, 4)[: i % 5], rng))
    alone = [verify([t], rows_of(t, r), [r], on_host=on_host)[0] for t, r in zip(trees, requests, strict=True)]
    chosen = order[:size]
    logits = torch.cat([rows_of(trees[i], requests[i]) for i in chosen])
    together = verify([trees[i] for i in chosen], logits, [requests[i] for i in chosen], on_host=on_host)
    for i, done in zip(chosen, together, strict=True):
        np.testing.assert_array_equal(done.outcome.path, alone[i].outcome.path)
        np.testing.assert_array_equal(done.outcome.wanted, alone[i].outcome.wanted)
        assert done.logprobs == alone[i].logprobs


@BOTH
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_of_every_committed_token_are_the_raw_ones(temperature, on_host):
    """Accepted drafts and the last token alike, untouched by bias, temperature and filters."""
    req = request(SamplingParams(temperature=temperature, top_k=3, logit_bias={3: 4.0}, logprobs=2))
    tree = tree_around(plain(req, 3), np.random.default_rng(5))
    rows = rows_of(tree, req)
    done = verify([tree], rows, [req], on_host=on_host)[0]
    assert len(done.logprobs) == len(done.outcome.path) == 4
    for row, token, report in zip(done.outcome.path, done.outcome.wanted, done.logprobs, strict=True):
        reference = token_logprob(rows[row].numpy(), token, 2)
        assert report.token == token
        assert report.logprob == pytest.approx(reference.logprob, abs=1e-12)
        assert [t for t, _ in report.top] == [t for t, _ in reference.top]
        assert [x for _, x in report.top] == pytest.approx([x for _, x in reference.top], abs=1e-12)
        assert report.logprob == pytest.approx(torch.log_softmax(rows[row], 0)[token].item(), abs=1e-5)


@BOTH
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padded_vocabulary_does_not_exist(temperature, on_host):
    """The padding's logits are whatever the weights hold: it is never chosen and takes no probability."""
    req = request(SamplingParams(temperature=temperature, logprobs=1))
    tree = TokenTree.root(1)
    rows = rows_of(tree, req)
    padded = torch.cat([rows, torch.full((1, 8), 50.0)], dim=1)
    (with_padding,) = verify([tree], padded, [req], vocab_size=V, on_host=on_host)
    (without_padding,) = verify([tree], rows, [req], on_host=on_host)
    assert with_padding.outcome.token == without_padding.outcome.token
    assert with_padding.logprobs == without_padding.logprobs


def test_greedy_on_a_device_moves_no_row_of_the_vocabulary(monkeypatch):
    """One argmax over all rows: the per-row chain is not entered."""
    for name in ("edit", "scores", "probabilities", "best", "draw", "draw_scores", "token_logprob"):
        monkeypatch.setattr(device, name, None)
    req = request(SamplingParams(temperature=0, top_p=0.5, min_tokens=3))
    tree = tree_around(plain(req, 3), np.random.default_rng(6))
    outcome = verify([tree], rows_of(tree, req), [req], on_host=False)[0].outcome
    assert outcome.wanted.tolist() == plain(req, 4)


@BOTH
def test_bfloat16_logits(on_host):
    req = request(SamplingParams(temperature=0.8, logprobs=1))
    tree = TokenTree.root(1)
    rows = rows_of(tree, req).to(torch.bfloat16)
    wide = verify([tree], rows.float(), [req], on_host=on_host)[0]
    assert verify([tree], rows, [req], on_host=on_host)[0].outcome.token == wide.outcome.token


@BOTH
def test_drawn_trees_go_to_reject(on_host):
    """The rule of layer A itself, fed with tensors: same path, same token."""
    params = SamplingParams(temperature=0.9, top_k=12)
    lengths = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        base = {row: rng.dirichlet(np.ones(V) / 4) for row in range(6)}
        tokens, parents, left = [1], [-1], dict(base)
        for parent in (0, 0, 1, 2, 2):
            tokens.append(int(rng.choice(V, p=left[parent])))
            parents.append(parent)
            left[parent] = without(left[parent], tokens[-1])
        tree = make(tokens, parents, Proposal.DRAWN)
        drafted = {row: torch.from_numpy(q) for row, q in base.items()}
        req = replace(request(params, seed), drafted=drafted.__getitem__)
        rows = torch.from_numpy(np.log(np.stack([base[row] for row in range(6)]) + 1e-3))
        done = verify([tree], rows, [req], on_host=on_host)[0].outcome
        reference = reject(
            tree,
            lambda row, rows=rows: host.probabilities(host.scores(rows[row].numpy(), params)),
            base.__getitem__,
            KeyedDice(seed, 3),
        )
        assert done.path.tolist() == reference.path.tolist()
        assert done.wanted.tolist() == reference.wanted.tolist()
        lengths.add(len(done.path))
    assert lengths == {1, 2, 3}


def test_a_drawn_tree_needs_its_q_unless_greedy():
    tree = make([1, 2], [-1, 0], Proposal.DRAWN)
    rows = torch.zeros(2, V)
    with pytest.raises(LosslessViolation, match="none was given"):
        verify([tree], rows, [request(SamplingParams())])
    verify([tree], rows, [request(SamplingParams(temperature=0))])
