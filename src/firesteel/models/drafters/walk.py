"""From a block's states to its tokens: left to right, each given the one before, for a whole batch at once.

The plain reference for blocks of one length is `greedy.py`; here blocks have their own lengths, and a caller may choose
tokens itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firesteel.models.drafters.model import DrafterModel
from firesteel.tree import IntArray

Choose = Callable[[int, int, Tensor], int | None]
"""`choose(block, k, logits [draft_vocab])` may name a block's k-th token, a draft id; None leaves it the likeliest."""


@dataclass(frozen=True, eq=False)
class Walk:
    """What was said at each of the N rows of a batch of blocks; rows that predict nothing hold zeros.

    Fields:
        picks: `int64[N]` draft ids.
        before: `int64[N]` target id of the token before each pick.
        logits: `[N, draft_vocab]` given that token.
        states: `[N, r]` what a recurrent Markov head remembered there; None without one.
        top: `int64[N, K]` draft ids of the likeliest tokens, by falling probability.
        probs: fp32 `[N, K]` their probabilities at the block's heat.
    """

    picks: Tensor
    before: Tensor
    logits: Tensor
    states: Tensor | None
    top: Tensor
    probs: Tensor


def walk(
    model: DrafterModel,
    base: Tensor,  # [N, draft_vocab]  base logits
    h: Tensor,  # [N, H]
    anchors: Sequence[int],
    starts: IntArray,  # [n]  first predicting row of each block
    lengths: IntArray,  # [n]  predicting rows, at least 1
    heats: Sequence[float],  # [n]  temperature of the probabilities
    count: int,  # K
    choose: Choose | None = None,
) -> Walk:
    """Walk the blocks: at each position the likeliest token, or that of `choose`."""
    count_rows, device = len(base), base.device
    picks = torch.zeros(count_rows, dtype=torch.int64, device=device)
    befores, logits = torch.zeros_like(picks), torch.zeros_like(base)
    before, state = torch.tensor(anchors, device=device), None
    recurrent = model.markov_head is not None and model.markov_head.kind == "rnn"
    states = h.new_zeros(count_rows, model.config.markov_rank) if recurrent else None
    alive = np.arange(len(anchors))
    for k in range(int(lengths.max())):
        longer = lengths[alive] > k
        if not longer.all():
            alive, kept = alive[longer], torch.from_numpy(longer).to(device)
            before, state = before[kept], None if state is None else state[kept]
        rows = torch.from_numpy(starts[alive] + k).to(device)
        if states is not None and state is not None:
            states[rows] = state
        said, state = model.conditional(base[rows], h[rows], before, state)
        chosen = said.argmax(-1)
        if choose is not None:
            for place, block in enumerate(alive.tolist()):
                if (token := choose(block, k, said[place])) is not None:
                    chosen[place] = token
        picks[rows], befores[rows], logits[rows] = chosen, before, said
        before = model.target_ids(chosen)
    heat = torch.ones(count_rows, 1, device=device)
    for start, length, value in zip(starts, lengths, heats, strict=True):
        heat[start : start + length] = value
    return Walk(picks, befores, logits, states, *likeliest(logits, heat, count))


def likeliest(logits: Tensor, heat: Tensor | float, count: int) -> tuple[Tensor, Tensor]:
    """Draft ids `int64[n, K]` of the likeliest K tokens by logits `[n, draft_vocab]`, and their probabilities."""
    top = logits.topk(min(count, logits.shape[-1]))
    return top.indices, (top.values / heat - (logits / heat).logsumexp(-1, keepdim=True)).exp()
