"""The losses: what they are by definition, and the fused twin beside the plain one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from firesteel.train.losses import LossConfig, Said, Slots, combine, scores_fused, scores_plain

V, R, N, BLOCK = 50, 12, 21, 3


def slots(top: int, seed: int = 0, *, renormalised: bool = False) -> tuple[Slots, Tensor]:
    """Random slots whose teacher shows its `top` likeliest of V tokens, and the whole of its p."""
    torch.manual_seed(seed)
    p = torch.randn(N, V).mul(2).softmax(-1)
    probs, ids = p.topk(top)
    if renormalised:
        probs = probs / probs.sum(-1, keepdim=True)
    index = torch.arange(N) % BLOCK
    label = torch.multinomial(p, 1)[:, 0]
    label[5] = -1
    valid = torch.ones(N, dtype=torch.bool)
    valid[-2:] = False
    return Slots(BLOCK, index, label, ids, probs, valid), p


def inputs(seed: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(N, R, requires_grad=True), torch.randn(V, R, requires_grad=True)


@pytest.mark.parametrize("top", [4, V])
@pytest.mark.parametrize("chunk", [4, 1024])
def test_the_fused_scores_are_the_plain_ones_and_so_are_their_gradients(top: int, chunk: int) -> None:
    given, _ = slots(top)
    results = []
    for fused in (False, True):
        states, head = inputs()
        scores = scores_fused(states, head, given, chunk) if fused else scores_plain(states @ head.T, given)
        loss = combine(Said(*scores, scores[1] * 2 - 1, scores[0] / 2), given, LossConfig(teacher=0.4))
        loss.total.backward()
        results.append((*scores, loss.total, states.grad, head.grad))
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, atol=1e-5, rtol=1e-5)


def test_with_the_whole_of_p_alpha_is_one_minus_half_the_distance() -> None:
    given, p = slots(V)
    states, head = inputs()
    q = (states @ head.T).softmax(-1)
    _, alpha, _ = scores_fused(states, head, given)
    torch.testing.assert_close(alpha, 1 - 0.5 * (p - q).abs().sum(-1))


def test_a_teacher_cut_short_only_lowers_alpha_and_one_renormalised_does_not() -> None:
    """The poisoned twin: spreading the cut tail over the kept tokens promises acceptance that is not there."""
    states, head = inputs()
    _, whole, _ = scores_fused(states, head, slots(V)[0])
    _, cut, _ = scores_fused(states, head, slots(4)[0])
    _, poisoned, _ = scores_fused(states, head, slots(4, renormalised=True)[0])
    assert (cut <= whole + 1e-6).all()
    assert (poisoned > whole + 1e-3).any()


def test_a_token_that_the_draft_vocabulary_lacks_is_never_matched() -> None:
    given, p = slots(V)
    lacking = torch.where(given.top == 7, torch.full_like(given.top, -1), given.top)
    states, head = inputs()
    _, alpha, _ = scores_fused(states, head, given)
    given = Slots(BLOCK, given.index, given.label, lacking, given.top_probs, given.valid)
    _, less, _ = scores_fused(states, head, given)
    q = (states @ head.T).softmax(-1)
    torch.testing.assert_close(alpha - less, torch.minimum(p, q)[:, 7])


def test_terms_weights_and_masks() -> None:
    """By hand: exp(-k / decay) over valid slots; labels that cannot be said leave the cross entropy only."""
    config = LossConfig(cross_entropy=0.3, distance=0.5, confidence=2.0, selector=0.7, teacher=0.6, decay=2.0)
    given, _ = slots(V)
    log_q, alpha, doubt = -torch.rand(N) - 0.1, torch.rand(N), torch.randn(N)
    picked, agreement = -torch.rand(N), -torch.rand(N)
    loss = combine(Said(log_q, alpha, agreement, doubt, picked), given, config)
    w = torch.exp(-given.index / 2.0) * given.valid
    known = w * (given.label >= 0)
    ce = (known * -log_q).sum() / known.sum()
    distance = (w * 2 * (1 - alpha)).sum() / w.sum()
    said = torch.sigmoid(doubt)
    bce = (w * -(alpha * said.log() + (1 - alpha) * (1 - said).log())).sum() / w.sum()
    soft = (w * -agreement).sum() / w.sum()
    selector = (known * -picked).sum() / known.sum()
    torch.testing.assert_close(loss.total, 0.3 * ce + 0.5 * distance + 2 * bce + 0.7 * selector + 0.6 * soft)
    chains = (alpha * given.valid).view(-1, BLOCK).cumprod(-1).sum(-1)
    assert loss.tokens_per_round == pytest.approx(1 + float(chains.sum()) / given.valid.view(-1, BLOCK)[:, 0].sum())


def test_nothing_flows_back_through_the_confidences_label() -> None:
    given, _ = slots(V)
    alpha = torch.rand(N, requires_grad=True)
    said = Said(torch.zeros(N), alpha, torch.zeros(N), torch.randn(N, requires_grad=True))
    combine(said, given, LossConfig(cross_entropy=0, distance=0)).total.backward()
    assert alpha.grad is None or not alpha.grad.any()
