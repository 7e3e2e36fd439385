"""Many anchors of a few conversations in one pass: which tokens each block sees, and what it should say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from firesteel.models.drafters.config import DrafterConfig
from firesteel.train.lessons import Lesson
from firesteel.train.losses import Slots


@dataclass(frozen=True, eq=False)
class Batch:
    """C conversations, A anchors in each, D drafts per anchor.

    Fields:
        features: `[C, T, F]`, padded with zeros.
        places: `int64[C, T]` positions.
        anchors: `int64[C, A]` positions; tokens: `int64[C, A]` what stands there.
        seen: `bool[C, A, T]`: strictly before the anchor, whose own features are not known when serving either.
        before: `int64[C, A, D]` target id of the token before each predicted one: the truth.
        slots: of all `C * A * D` predictions.
    """

    features: Tensor
    places: Tensor
    anchors: Tensor
    tokens: Tensor
    seen: Tensor
    before: Tensor
    slots: Slots

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def anchors_of(lesson: Lesson) -> np.ndarray:
    """Positions that can be an anchor: from the prompt's last token to the last but one of the text."""
    return np.arange(lesson.first, len(lesson.ids) - 1)


def make_batch(
    lessons: Sequence[Lesson], anchors: Sequence[np.ndarray], config: DrafterConfig, draft_ids: Tensor | None
) -> Batch:
    """Lay out blocks at `anchors[c]` of `lessons[c]`; shorter lists are filled up with slots that do not count.

    `draft_ids`: `int64[V]` draft id of each target id, -1 where the draft vocabulary lacks it; None for the identity.
    """
    longest = max(len(lesson.ids) for lesson in lessons)
    most, drafts = max(len(a) for a in anchors), config.drafts
    count, width, top = len(lessons), lessons[0].features.shape[-1], lessons[0].top_ids.shape[-1]
    features = torch.zeros(count, longest, width)
    at = torch.zeros(count, most, dtype=torch.int64)
    tokens, real = torch.zeros_like(at), torch.zeros(count, most, dtype=torch.bool)
    before = torch.zeros(count, most, drafts, dtype=torch.int64)
    label = torch.full((count, most, drafts), -1)
    valid = torch.zeros(count, most, drafts, dtype=torch.bool)
    top_ids = torch.full((count, most, drafts, top), -1)
    top_probs = torch.zeros(count, most, drafts, top)
    offsets = torch.arange(drafts)
    for c, (lesson, chosen) in enumerate(zip(lessons, anchors, strict=True)):
        n, last = len(chosen), len(lesson.ids) - 1
        features[c, : len(lesson.ids)] = lesson.features.float()
        a = torch.from_numpy(np.asarray(chosen, np.int64))
        at[c, :n], tokens[c, :n], real[c, :n] = a, lesson.ids[a], True
        predecessor = a[:, None] + offsets  # position of the token before the predicted one; the teacher's row too
        inside = predecessor < last
        predecessor = predecessor.clamp(max=last - 1)
        before[c, :n] = lesson.ids[predecessor]
        label[c, :n], valid[c, :n] = lesson.ids[predecessor + 1], inside
        top_ids[c, :n] = lesson.top_ids[predecessor - lesson.first]
        top_probs[c, :n] = lesson.top_probs[predecessor - lesson.first]
    if draft_ids is not None:
        missing = torch.full_like(label, -1)
        label = torch.where(valid, draft_ids[label.clamp(min=0)], missing)
        top_ids = torch.where(top_ids >= 0, draft_ids[top_ids.clamp(min=0)], torch.full_like(top_ids, -1))
    # A chain cannot pass a token that the head cannot say.
    reachable = torch.cat([torch.ones_like(valid[..., :1]), (label >= 0)[..., :-1].cumprod(-1).bool()], dim=-1)
    slots = Slots(
        block=drafts,
        index=offsets.expand(count, most, -1).flatten(),
        label=label.flatten(),
        top=top_ids.flatten(0, 2),
        top_probs=top_probs.flatten(0, 2),
        valid=(valid & reachable).flatten(),
    )
    places = torch.arange(longest).expand(count, -1)
    seen = (places[:, None] < at[..., None]) & real[..., None]
    return Batch(features, places, at, tokens, seen, before, slots)
