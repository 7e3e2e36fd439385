"""The torch twin of `firesteel.sampling`: the same functions under the same names, for rows that live on a device.

float64 throughout, so that the two part only at ties at float64's rounding distance. Rows are taken one by one, because
a reduction over a batch may round differently from one over a single row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from firesteel.race import HEAT, race
from firesteel.sampling import SamplingParams, TokenLogprob


def edit(
    logits: Tensor,  # [V]
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stop_ids: Sequence[int],
) -> Tensor:
    """float64[V]: see `firesteel.sampling.edit`."""
    x = logits.to(torch.float64, copy=True)

    def ids(tokens: Sequence[int]) -> Tensor:
        return torch.as_tensor(tokens, dtype=torch.int64).to(x.device)

    if len(output) < params.min_tokens:
        x[ids(list(stop_ids))] = -torch.inf
    if params.logit_bias:
        x[ids(list(params.logit_bias))] += torch.tensor(list(params.logit_bias.values()), dtype=x.dtype).to(x.device)
    if params.repetition_penalty != 1:
        seen = torch.unique(torch.cat([ids(prompt), ids(output)]))
        x[seen] = torch.where(x[seen] > 0, x[seen] / params.repetition_penalty, x[seen] * params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        used, counts = torch.unique(ids(output), return_counts=True)
        x[used] -= params.frequency_penalty * counts.to(x.dtype) + params.presence_penalty
    return x


def scores(logits: Tensor, params: SamplingParams) -> Tensor:
    """float64[V]: see `firesteel.sampling.scores`."""
    x = logits.to(torch.float64) * (1 / params.temperature)
    if params.min_p > 0:
        x[x < x.max() + math.log(params.min_p)] = -torch.inf
    if 0 < params.top_k < len(x):
        x[x < x.topk(params.top_k).values[-1]] = -torch.inf
    if params.top_p < 1:
        w = (x - x.max()).exp()
        total = w.sum()
        falling = w[w >= (1 - params.top_p) * total / len(w)].sort(descending=True).values
        before = falling.cumsum(0)[:-1]
        x[w < falling[(before < params.top_p * total).sum()]] = -torch.inf
    return x


def probabilities(scores: Tensor) -> Tensor:
    """float64[V]: see `firesteel.sampling.probabilities`."""
    w = (scores - scores.max()).exp()
    return w / w.sum()


def best(logits: Tensor) -> int:
    """The argmax of logits [V]."""
    return int(logits.argmax())


def draw(p: Tensor, key: int) -> int:
    """See `firesteel.sampling.draw`. The race itself is on the host; a few thousand weights travel there."""
    runners = F.pad(p, (0, -len(p) % HEAT)).view(HEAT, -1)
    return race(_host(runners.amax(0)), lambda heats: _host(runners[:, torch.from_numpy(heats)]), key)


def draw_scores(scores: Tensor, key: int) -> int:
    """See `firesteel.sampling.draw_scores`."""
    return draw((scores - scores.max()).exp(), key)


def _host(x: Tensor) -> np.ndarray:
    return x.numpy(force=True)


def token_logprob(logits: Tensor, token: int, alternatives: int) -> TokenLogprob:
    """See `firesteel.sampling.token_logprob`; one transfer to the host."""
    x = torch.log_softmax(logits.to(torch.float64), dim=0)
    values, tokens = x.topk(min(alternatives, len(x)))
    # Token ids are exact in float64, so that both travel together.
    chosen, *rest = torch.cat([x[token : token + 1], values, tokens.to(x.dtype)]).tolist()
    n = len(rest) // 2
    return TokenLogprob(token, chosen, tuple(zip(map(int, rest[n:]), rest[:n], strict=True)))
