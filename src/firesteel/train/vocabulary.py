"""Which target tokens a reduced draft vocabulary keeps: those that the target's own distributions weigh most."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from firesteel.train.conversations import Conversation
from firesteel.train.lessons import Lesson


def choose_vocabulary(
    conversations: Iterable[Conversation], lessons: Iterable[Lesson], vocab: int, size: int
) -> Tensor:
    """`int64[size]` rising ids: the tokens of the replies, counted, plus the teacher's probability of each, summed.

    Probabilities of even a few lessons name tokens that a corpus of this size never shows. Ties go to lower ids.
    """
    weight = np.zeros(vocab)
    for conversation in conversations:
        np.add.at(weight, np.asarray(conversation.ids[conversation.prompt_len :], np.int64), 1.0)
    for lesson in lessons:
        np.add.at(weight, lesson.top_ids.numpy().ravel(), lesson.top_probs.numpy().ravel())
    kept = np.argsort(-weight, kind="stable")[:size]
    return torch.from_numpy(np.sort(kept))


def draft_ids_of(kept: Tensor | None, vocab: int) -> Tensor | None:
    """`int64[vocab]` draft id of each target id, -1 where it is not kept: the inverse of `kept`."""
    if kept is None:
        return None
    inverse = torch.full((vocab,), -1, dtype=torch.int64)
    inverse[kept] = torch.arange(len(kept))
    return inverse
