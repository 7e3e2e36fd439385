"""What a block drafter is trained on (DSpark paper; DeepSpec's values):

    L = 0.1 CE(q, the text's token) + 0.9 sum_v |q - p| + BCE(confidence, alpha),    alpha = sum_v min(p, q)

each a mean over slots weighted exp(-k / 4), k the draft's index in its block. p and q at temperature 1; q after the
Markov bias. alpha is the chance that a draft from q is accepted, and sum |q - p| = 2 (1 - alpha): minimising it is
maximising acceptance.

The distance hardly pulls at a token whose q is still tiny (its gradient is proportional to q), and one label a slot
says little. So a drafter that knows nothing yet may be given the teacher's whole distribution as its label beside
them, - sum_v p log q: the KL divergence, which is speculators' default, up to a constant.

The teacher's p comes as its K likeliest tokens over the target's whole vocabulary, not renormalised. A token that the
draft vocabulary lacks stays in p and can never be matched; p's tail beyond K counts as never matched either.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the terms, and the decay of slots in tokens. The selector's objective is speculators' (DFlash 2).

    `teacher` weighs - sum_v p log q; 0 leaves DeepSpec's loss.
    """

    cross_entropy: float = 0.1
    teacher: float = 0.0
    distance: float = 0.9
    confidence: float = 1.0
    selector: float = 1.0
    decay: float = 4.0


@dataclass(frozen=True, eq=False)
class Slots:
    """N predicted slots, flat, block after block.

    Fields:
        block: drafts of a block; N is a multiple of it.
        index: `int64[N]` k, the draft's place in its block, from 0.
        label: `int64[N]` draft id of the text's token; -1 where the draft vocabulary lacks it.
        top: `int64[N, K]` draft ids of the teacher's likeliest tokens; -1 where lacking.
        top_probs: `float32[N, K]` their probabilities.
        valid: `bool[N]` slots that count: inside the text, behind labels that the draft vocabulary has.
    """

    block: int
    index: Tensor
    label: Tensor
    top: Tensor
    top_probs: Tensor
    valid: Tensor

    def to(self, device: torch.device) -> Slots:
        """The same on another device."""
        moved = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name != "block"}
        return Slots(block=self.block, **moved)


def scores_plain(logits: Tensor, slots: Slots) -> tuple[Tensor, Tensor, Tensor]:
    """(log q of the label, alpha, sum_v p log q), `[N]` each, from logits `[N, V]`: the reference of `scores_fused`."""
    log_q = logits.float().log_softmax(-1)
    p = torch.zeros_like(log_q)
    rows, columns = torch.nonzero(slots.top >= 0, as_tuple=True)
    p[rows, slots.top[rows, columns]] = slots.top_probs[rows, columns]
    alpha = torch.minimum(p, log_q.exp()).sum(-1)
    return log_q.gather(1, slots.label.clamp(min=0)[:, None])[:, 0], alpha, (p * log_q).sum(-1)


def scores_fused(states: Tensor, head: Tensor, slots: Slots, chunk: int = 1024) -> tuple[Tensor, Tensor, Tensor]:
    """The same from states `[N, R]` and head `[V, R]`, in chunks whose logits are never kept: made again backward.

    With the Markov factor beside the state and W2 beside the output head, the bias is part of the one product.
    """
    parts = []
    for start in range(0, len(states), chunk):
        span = slice(start, start + chunk)
        arguments = (states[span], head, slots.label[span], slots.top[span], slots.top_probs[span])
        if torch.is_grad_enabled() and len(states) > chunk:
            parts.append(checkpoint(_scores, *arguments, use_reentrant=False))
        else:
            parts.append(_scores(*arguments))
    log_q, alpha, agreement = (torch.cat(column) for column in zip(*parts, strict=True))
    return log_q, alpha, agreement


def _scores(
    states: Tensor, head: Tensor, label: Tensor, top: Tensor, top_probs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    logits = F.linear(states, head).float()
    total = logits.logsumexp(-1, keepdim=True)
    log_q = logits.gather(1, top.clamp(min=0)) - total
    alpha = torch.where(top >= 0, torch.minimum(top_probs, log_q.exp()), 0.0).sum(-1)
    agreement = torch.where(top >= 0, top_probs * log_q, 0.0).sum(-1)
    return logits.gather(1, label.clamp(min=0)[:, None])[:, 0] - total[:, 0], alpha, agreement


@dataclass(frozen=True, eq=False)
class Said:
    """What a drafter says of N slots, `[N]` each.

    Fields:
        log_q: log-probability of the slot's label; alpha: overlap with the teacher; agreement: sum_v p log q.
        confidence: logit of the confidence head; selector: log-probability that the path selector picks the label.
    """

    log_q: Tensor
    alpha: Tensor
    agreement: Tensor
    confidence: Tensor | None = None
    selector: Tensor | None = None


@dataclass(frozen=True)
class Loss:
    """The loss, and what it is made of as plain numbers.

    Fields:
        total: with its gradient.
        cross_entropy, alpha, confidence: weighted means of the terms.
        tokens_per_round: what sampled chains would commit per round from these anchors: 1 + the mean over blocks of
            the sum over slots of the product of alpha up to there.
    """

    total: Tensor
    cross_entropy: float
    alpha: float
    confidence: float
    tokens_per_round: float


def combine(said: Said, slots: Slots, config: LossConfig) -> Loss:
    """The weighted loss of what was said."""
    log_q, alpha, confidence = said.log_q, said.alpha, said.confidence
    weight = torch.exp(-slots.index / config.decay) * slots.valid

    def mean(x: Tensor, w: Tensor) -> Tensor:
        return (w * x).sum() / w.sum().clamp(min=1e-9)

    known = weight * (slots.label >= 0)
    cross_entropy, distance = mean(-log_q, known), mean(2 * (1 - alpha), weight)
    total = config.cross_entropy * cross_entropy + config.distance * distance
    if config.teacher:
        total = total + config.teacher * mean(-said.agreement, weight)
    doubt = alpha.new_zeros(())
    if confidence is not None:
        # The teacher's number is a label: nothing flows back through it.
        doubt = mean(
            F.binary_cross_entropy_with_logits(confidence, alpha.detach().clamp(0, 1), reduction="none"), weight
        )
        total = total + config.confidence * doubt
    if said.selector is not None:
        total = total + config.selector * mean(-said.selector, known)
    total_alpha = alpha.detach()
    survival = (total_alpha * slots.valid).view(-1, slots.block).cumprod(-1)
    used = slots.valid.view(-1, slots.block)[:, 0].sum().clamp(min=1)
    return Loss(
        total,
        cross_entropy=float(cross_entropy.detach()),
        alpha=float(mean(total_alpha, weight)),
        confidence=float(doubt.detach()),
        tokens_per_round=1.0 + float(survival.sum() / used),
    )
