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


@dataclass(frozen=True, eq=False)
class Walk:
    """What was said at each of the N rows of a batch of blocks; rows that predict nothing hold zeros.

    Fields:
        picks: `int64[N]` draft ids.
        before: `int64[N]` target id of the token before each pick.
        logits: `[N, draft_vocab]` given that token.
        states: `[N, r]` what a recurrent Markov head remembered there; None without one.
    """

    picks: Tensor
    before: Tensor
    logits: Tensor
    states: Tensor | None


def walk(
    model: DrafterModel,
    base: Tensor,  # [N, draft_vocab]  base logits
    h: Tensor,  # [N, H]
    anchors: Sequence[int],
    starts: IntArray,  # [n]  first predicting row of each block
    lengths: IntArray,  # [n]  predicting rows, at least 1
    choose: Callable[[int, int, Tensor], int | None] | None = None,
) -> Walk:
    """Walk the blocks; `choose(block, k, logits [draft_vocab])` may name the k-th token, else it is the likeliest."""
    count, device = len(base), base.device
    picks = torch.zeros(count, dtype=torch.int64, device=device)
    befores, logits = torch.zeros_like(picks), torch.zeros_like(base)
    before, state = torch.tensor(anchors, device=device), None
    recurrent = model.markov_head is not None and model.markov_head.kind == "rnn"
    states = h.new_zeros(count, model.config.markov_rank) if recurrent else None
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
    return Walk(picks, befores, logits, states)
