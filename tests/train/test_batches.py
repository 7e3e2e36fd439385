"""Blocks see what they would see when serving, and are asked for what comes next: alignment, shown both ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firesteel.models.drafters.blocks import TorchBlocks, new_context_cache
from firesteel.train.batches import anchors_of, make_batch
from firesteel.train.pupil import Pupil
from tests import toys
from tests.train import lesson_toys

KINDS = [("dspark", {}), ("dspark", {"markov_kind": "rnn"}), ("dflash", {}), ("dflash2", {})]


@pytest.fixture(scope="module")
def model() -> Any:
    return toys.model()


@pytest.fixture
def lessons(model: Any, tmp_path: Path) -> list:
    of = lesson_toys.target(model)
    made = [lesson_toys.random_conversation(30, 6), lesson_toys.random_conversation(21, 9, seed=1)]
    return [lesson_toys.lesson(of, conversation, tmp_path) for conversation in made]


@pytest.mark.parametrize("kind", ["dspark", "dflash"])
def test_labels_teachers_and_predecessors(model: Any, lessons: list, kind: str) -> None:
    """Slot k of the block at a: the token at a + k + 1, the teacher's row there, and the token before it."""
    config = toys.drafter_config(kind, model.config)
    at = [np.array([7, 20, 27]), np.array([8, 19])]
    batch = make_batch(lessons, at, config, None)
    width = config.drafts
    label = batch.slots.label.view(2, 3, width)
    valid = batch.slots.valid.view(2, 3, width)
    top = batch.slots.top.view(2, 3, width, -1)
    for c, lesson in enumerate(lessons):
        for i in range(3):
            for k in range(width):
                inside = i < len(at[c]) and at[c][i] + k + 1 < len(lesson.ids)
                assert bool(valid[c, i, k]) is bool(inside)
                if inside:
                    a = int(at[c][i])
                    assert label[c, i, k] == lesson.ids[a + k + 1]
                    assert batch.before[c, i, k] == lesson.ids[a + k]
                    assert torch.equal(top[c, i, k], lesson.top_ids[a + k - lesson.first])
    assert anchors_of(lessons[0]).tolist() == list(range(5, 29))


def test_a_teachers_row_is_the_targets_distribution_after_that_token(lessons: list) -> None:
    lesson = lessons[0]
    p = toys.model()(lesson.ids[None]).logits[0].softmax(-1)
    row = torch.zeros(toys.VOCAB)
    row[lesson.top_ids[10 - lesson.first]] = lesson.top_probs[10 - lesson.first]
    torch.testing.assert_close(row, p[10].detach(), atol=1e-3, rtol=1e-3)


def test_slots_behind_a_label_that_cannot_be_said_do_not_count(model: Any, lessons: list) -> None:
    config = toys.drafter_config("dspark", model.config)
    draft_ids = torch.arange(toys.VOCAB)
    draft_ids[lessons[0].ids[9]] = -1
    batch = make_batch(lessons[:1], [np.array([7])], config, draft_ids)
    assert batch.slots.label[1] == -1  # the token at 9
    assert batch.slots.valid.tolist() == [True, True, False, False]


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_training_and_serving_see_the_same_block(model: Any, lessons: list, kind: str, changes: dict) -> None:
    """The states in training at anchor a are those of a served block whose context is the text before a."""
    drafter = toys.drafter_model(model, kind, **changes)
    scale = torch.rand(96) + 0.5
    pupil = Pupil(toys.drafter_model(model, kind, **changes), scale)
    with torch.no_grad():
        pupil.drafter.fc.weight *= scale  # so that folding gives the served drafter's weights
    torch.testing.assert_close(pupil.fold()["fc.weight"], drafter.fc.weight)
    anchors = [np.array([6, 13]), np.array([10])]
    batch = make_batch(lessons, anchors, drafter.config, None)
    states = pupil.states(batch)
    unused = 0 if drafter.config.anchor_first else 1
    for c, lesson in enumerate(lessons):
        for i, a in enumerate(anchors[c].tolist()):
            cache = new_context_cache(drafter, 1, torch.float32, torch.device("cpu"))
            TorchBlocks(drafter).append([lesson.features[:a].float()], [0], cache)
            _, h = TorchBlocks(drafter)([int(lesson.ids[a])], [drafter.config.block_size], [0], cache)
            torch.testing.assert_close(states[c, i], h[unused:], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("changed", "differs"), [(13, False), (20, False), (12, True)])
def test_features_at_the_anchor_or_later_do_not_leak(model: Any, lessons: list, changed: int, differs: bool) -> None:
    """And those right before it are seen."""
    pupil = Pupil(toys.drafter_model(model), torch.ones(96))
    features = lessons[0].features.clone()
    features[changed] += 1.0
    states = [
        pupil.states(make_batch([lesson], [np.array([13])], pupil.drafter.config, None))
        for lesson in (lessons[0], replace(lessons[0], features=features))
    ]
    assert torch.equal(*states) is not differs


def test_an_anchor_with_nothing_before_it_is_finite(model: Any, tmp_path: Path) -> None:
    lesson = lesson_toys.lesson(lesson_toys.target(model), lesson_toys.random_conversation(9, 1), tmp_path)
    pupil = Pupil(toys.drafter_model(model), torch.ones(96))
    batch = make_batch([lesson], [np.array([0])], pupil.drafter.config, None)
    assert torch.isfinite(pupil.states(batch)).all()
    said = pupil(batch)
    assert all(torch.isfinite(part).all() for part in (said.log_q, said.alpha, said.confidence))


def test_the_path_selectors_loss_is_that_of_its_own_walk(model: Any, lessons: list) -> None:
    """Where the label is a candidate, the trained probability is the one that serving draws from."""
    pupil = Pupil(toys.drafter_model(model, "dflash2"), torch.ones(96))
    batch = make_batch(lessons, [np.array([6, 13]), np.array([10])], pupil.drafter.config, None)
    said, h = pupil(batch), pupil.states(batch).flatten(0, 2)
    logits, _ = pupil.drafter.conditional(pupil.drafter.logits(h), h, batch.before.flatten(), None)
    served = logits.log_softmax(-1).gather(1, batch.slots.label.clamp(min=0)[:, None])[:, 0]
    among = torch.isfinite(served) & batch.slots.valid
    assert among.any()
    torch.testing.assert_close(said.selector[among], served[among], atol=1e-4, rtol=1e-4)
    assert torch.isfinite(said.selector).all()
