"""What a drafter drafts at temperature 0, as plainly as it can be written.

DFlash      each row's likeliest token
DSpark      left to right: the Markov head biases a row by the token picked before it
DFlash 2    left to right: the pair scores choose among a row's likeliest few
"""

from __future__ import annotations

import torch
from torch import Tensor

from firesteel.models.drafters.model import DrafterModel


def greedy_block(model: DrafterModel, h: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """The greedy drafts of blocks, from one backbone pass.

    Args:
        h: `[C, A, B, H]` states of the block's rows, as `Backbone.block` gives them.
        anchors: `int64[C, A]` the anchor tokens, in target ids.

    Returns:
        tokens `int64[C, A, n]` in target ids and the logits fp32 `[C, A, n, draft_vocab]` that they are the argmax of,
        for the n rows that predict: B of an anchor-first drafter, else all but the anchor's.
    """
    h = h if model.config.anchor_first else h[:, :, 1:]
    base = model.logits(h).flatten(0, 1)  # [C * A, n, draft_vocab]
    states = h.flatten(0, 1)
    before, memory = anchors.flatten(), None
    tokens, logits = [], []
    for row in range(base.shape[1]):
        scores, memory = model.conditional(base[:, row], states[:, row], before, memory)
        before = model.target_ids(scores.argmax(-1))
        tokens.append(before)
        logits.append(scores)
    shape = (*anchors.shape, len(tokens))
    return torch.stack(tokens, 1).view(shape), torch.stack(logits, 1).view(*shape, -1)
