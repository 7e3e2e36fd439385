"""How a drafter would do on greedy replies that it was not trained on: the engine's rounds, walked over known text.

At every position of a reply the block is known in advance, and so is what greedy verification would accept: the picks
that equal the text. A round that accepts k of them begins the next one k + 1 tokens on. So the walk visits exactly the
anchors that the engine would, and its tokens per round are the engine's, up to rounding of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firesteel.train.batches import Batch, anchors_of, make_batch
from firesteel.train.lessons import Lesson
from firesteel.train.pupil import Pupil


@dataclass(frozen=True)
class Validation:
    """What a walk found.

    Fields:
        tokens_per_round: committed tokens over rounds, all replies together.
        acceptance: per draft position, of the rounds in which all drafts before were accepted, the share in which
            this one was too.
        rounds: how many.
    """

    tokens_per_round: float
    acceptance: tuple[float, ...]
    rounds: int


@torch.inference_mode()
def validate(pupil: Pupil, lessons: Sequence[Lesson], draft_ids: Tensor | None) -> Validation:
    """Walk the replies of `lessons`, which should be greedy ones."""
    config = pupil.drafter.config
    offered, accepted = np.zeros(config.drafts), np.zeros(config.drafts)
    tokens = rounds = 0
    for lesson in lessons:
        anchors = anchors_of(lesson)
        batch = make_batch([lesson], [anchors], config, draft_ids).to(pupil.scale.device)
        hits = _hits(pupil, batch).cumprod(-1).sum(-1).tolist()
        at = 0
        while at < len(anchors):
            right, possible = hits[at], min(config.drafts, len(anchors) - at)
            accepted[:right] += 1
            offered[: min(right + 1, possible)] += 1
            rounds += 1
            tokens += min(right + 1, len(anchors) - at)
            at += right + 1
    shares = accepted / np.maximum(offered, 1)
    return Validation(tokens / max(rounds, 1), tuple(shares.tolist()), rounds)


def _hits(pupil: Pupil, batch: Batch) -> Tensor:
    """`int64[A, D]` whether each pick is the text's token, given that those before it are."""
    model, drafts = pupil.drafter, pupil.drafter.config.drafts
    h = pupil.states(batch).flatten(0, 1)  # [A, D, H]
    base, before, state, picks = model.logits(h), batch.before.flatten(0, 1), None, []
    for k in range(drafts):
        logits, state = model.conditional(base[:, k], h[:, k], before[:, k], state)
        picks.append(logits.argmax(-1))
    labels = batch.slots.label.view(-1, drafts)
    return (torch.stack(picks, dim=1) == labels).long()
