"""The loop: it learns a text by heart, goes on exactly where it stopped, and says what the engine would say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firesteel.engine.block_drafter import BlockDrafter
from firesteel.errors import InvalidParameter
from firesteel.models.drafters.blocks import TorchBlocks
from firesteel.models.drafters.model import DrafterModel
from firesteel.train.lessons import Teacher
from firesteel.train.pupil import Pupil
from firesteel.train.start import begin_as_drafter, begin_as_target, channel_scale, choose_mask, randomise, spread_taps
from firesteel.train.trainer import TrainConfig, Trainer
from firesteel.train.validation import validate
from firesteel.train.vocabulary import choose_vocabulary, draft_ids_of
from tests import toys
from tests.train import lesson_toys

PROMPTS = [[5, 17, 3, 40, 11], [2, 9, 44, 9, 2, 61]]


@pytest.fixture(scope="module")
def model() -> Any:
    return toys.model()


@pytest.fixture(scope="module")
def conversations(model: Any) -> list:
    of = lesson_toys.target(model)
    return [lesson_toys.greedy_reply(of, prompt, 40) for prompt in PROMPTS]


def new_trainer(model: Any, conversations: list, folder: Path, steps: int, kind: str = "dspark", **changes: Any):
    of = lesson_toys.target(model)
    teacher = Teacher(of, "toy", top=toys.VOCAB, folder=folder / "lessons")
    drafter = DrafterModel(toys.drafter_config(kind, model.config))
    randomise(drafter, 0)
    drafter.lend(*lesson_toys.lend(model))
    scale = channel_scale([teacher.lesson(conversation) for conversation in conversations])
    settings = {"steps": steps, "warmup": 5, "learning_rate": 3e-3, "conversations": 2, "anchors": 64, **changes}
    return Trainer(drafter, scale, teacher, conversations, TrainConfig(**settings), folder)


def served(trainer: Trainer, model: Any) -> BlockDrafter:
    """The drafter in training, as the engine would run it."""
    drafter = DrafterModel(trainer.drafter.config)
    drafter.load_state_dict(trainer.accelerator.unwrap_model(trainer.pupil).fold())
    drafter.lend(*lesson_toys.lend(model))
    return BlockDrafter(drafter.eval(), TorchBlocks(drafter), slots=4, vocab_size=toys.VOCAB)


@pytest.mark.parametrize("kind", ["dspark", "dflash", "dflash2"])
def test_texts_learnt_by_heart_are_drafted_in_whole_blocks(model, conversations, tmp_path, kind: str) -> None:
    """End to end: data, features, losses, row layout, serving. Any misalignment by one token would fail this."""
    trainer = new_trainer(model, conversations, tmp_path, 150, kind)
    first = trainer.train_step()
    while trainer.step < 150:
        last = trainer.train_step()
    assert last.alpha > 0.7 > first.alpha
    request = toys.request(PROMPTS[0], "r", max_tokens=40)
    width = trainer.drafter.config.drafts + 1
    toys.decode(lesson_toys.target(model), [request], "chain", width, drafter=served(trainer, model))
    assert request.output == conversations[0].ids[len(PROMPTS[0]) :].tolist()
    assert request.speculation.rounds <= -(-40 // width) + 1
    lesson = trainer._teacher.lesson(conversations[0])
    walked = validate(trainer.accelerator.unwrap_model(trainer.pupil), [lesson], None)
    assert walked.rounds == pytest.approx(request.speculation.rounds, abs=1)


def test_a_half_trained_drafter_walks_as_the_engine_goes(model, conversations, tmp_path) -> None:
    """Validation in training is acceptance in serving: the same rounds, not merely a similar share."""
    trainer = new_trainer(model, conversations, tmp_path, 25)
    for _ in range(25):
        trainer.train_step()
    for prompt, conversation in zip(PROMPTS, conversations, strict=True):
        request = toys.request(prompt, "r", max_tokens=40)
        toys.decode(lesson_toys.target(model), [request], "chain", 5, drafter=served(trainer, model))
        lesson = trainer._teacher.lesson(conversation)
        walked = validate(trainer.accelerator.unwrap_model(trainer.pupil), [lesson], None)
        assert abs(walked.rounds - request.speculation.rounds) <= 1  # features are kept in bf16
        assert 1 < walked.tokens_per_round < 5


def test_an_interrupted_run_goes_on_exactly(model, conversations, tmp_path) -> None:
    whole = new_trainer(model, conversations, tmp_path / "a", 8)
    for _ in range(8):
        whole.train_step()
    part = new_trainer(model, conversations, tmp_path / "b", 8)
    for _ in range(3):
        part.train_step()
    part.save()
    rest = new_trainer(model, conversations, tmp_path / "b", 8)
    assert rest.resume()
    assert rest.step == 3
    for _ in range(5):
        rest.train_step()
    for name, value in whole.drafter.state_dict().items():
        assert torch.equal(value, rest.drafter.state_dict()[name]), name


def test_another_configuration_does_not_go_on_silently(model, conversations, tmp_path) -> None:
    trainer = new_trainer(model, conversations, tmp_path, 8)
    trainer.train_step()
    trainer.save()
    with pytest.raises(InvalidParameter, match="learning_rate"):
        new_trainer(model, conversations, tmp_path, 8, learning_rate=1e-2).resume()


def test_a_schedule_may_be_cut_to_the_time_there_is(model, conversations, tmp_path) -> None:
    trainer = new_trainer(model, conversations, tmp_path, 40)
    trainer.train_step()
    trainer.save()
    shorter = new_trainer(model, conversations, tmp_path, 8)
    assert shorter.resume()
    while shorter.step < 8:
        shorter.train_step()
    rate = shorter._optimizer.param_groups[0]["lr"]
    assert rate == shorter.config.rate(7) < 0.5 * trainer.config.rate(7)


def test_every_conversation_is_seen_before_any_is_seen_again(model, conversations, tmp_path) -> None:
    many = [replace(conversations[0], ids=conversations[0].ids + 0, temperature=t / 10) for t in range(7)]
    trainer = new_trainer(model, conversations, tmp_path, 8)
    trainer._data = many
    seen = [c.temperature for step in range(7) for c in trainer.conversations_of(step)]
    assert sorted(seen[:7]) == sorted(seen[7:]) == [c.temperature for c in many]


def test_a_drafter_that_begins_as_the_target_has_its_keys_and_values(model, conversations, tmp_path) -> None:
    """With its one layer taken from the target's last: values exactly, keys up to their norm (the target has none)."""
    of = lesson_toys.target(model)
    lesson = lesson_toys.lesson(of, conversations[0], tmp_path)
    changes = {"layers": 1, "causal": (False,), "windows": (None,), "head_dim": 12, "intermediate": 64, "eps": 1e-6}
    drafter = DrafterModel(toys.drafter_config("dspark", model.config, **changes))
    randomise(drafter, 0)
    scale = channel_scale([lesson])
    assert "last 1 layers" in begin_as_target(drafter, model.state_dict(), scale, [lesson])
    x = lesson.features[1:, 48:].float()
    layer = model.model.layers[-1]
    with torch.no_grad():
        theirs = layer.self_attn.v_proj(layer.input_layernorm(x))
        c = drafter.hidden_norm(drafter.fc(lesson.features[1:].float() / scale))
        ours = drafter.layers[0].self_attn.v_proj(c)
    # The norm is taken after the channels are scaled: a token's values agree up to one factor.
    cosine = torch.nn.functional.cosine_similarity(ours, theirs)
    assert cosine.min() > 0.999
    block = torch.randn(5, 48)
    with torch.no_grad():
        own = drafter.layers[0].self_attn.v_proj(drafter.layers[0].input_layernorm(block))
        torch.testing.assert_close(own, layer.self_attn.v_proj(layer.input_layernorm(block)), atol=1e-3, rtol=1e-3)


def test_layers_of_another_shape_begin_at_random(model, conversations, tmp_path) -> None:
    lesson = lesson_toys.lesson(lesson_toys.target(model), conversations[0], tmp_path)
    drafter = DrafterModel(toys.drafter_config("dspark", model.config))
    assert "random" in begin_as_target(drafter, model.state_dict(), channel_scale([lesson]), [lesson])


def test_the_vocabulary_keeps_what_replies_and_teacher_weigh_most(model, conversations, tmp_path) -> None:
    lesson = lesson_toys.lesson(lesson_toys.target(model), conversations[0], tmp_path)
    kept = choose_vocabulary(conversations, [lesson], toys.VOCAB, 30)
    assert kept.tolist() == sorted(set(kept.tolist()))
    weight = np.zeros(toys.VOCAB)
    for conversation in conversations:
        for token in conversation.reply:
            weight[token] += 1
    for ids, probs in zip(lesson.top_ids.tolist(), lesson.top_probs.tolist(), strict=True):
        for token, p in zip(ids, probs, strict=True):
            weight[token] += p
    assert weight[kept].min() >= np.delete(weight, kept).max() - 1e-6
    inverse = draft_ids_of(kept, toys.VOCAB)
    assert inverse is not None
    assert inverse[kept].tolist() == list(range(30))
    assert int((inverse >= 0).sum()) == 30


def test_the_mask_is_a_token_that_nobody_uses() -> None:
    assert choose_mask([3, 0, 5, 0], [0, 1, 3], 4) == 3
    assert choose_mask([3, 0, 5, 0, 0], [0, 1], 4) == 4  # a row beyond the tokenizer's ids
    with pytest.raises(InvalidParameter, match="--mask-token"):
        choose_mask([1, 1], [0, 1], 2)


def test_taps_are_spread_as_published() -> None:
    assert spread_taps(36) == (1, 9, 17, 25, 33)
    assert spread_taps(40) == (1, 10, 19, 28, 37)
    assert spread_taps(30, 1) == (15,)


def test_training_that_goes_on_from_a_drafter_begins_with_its_weights(model) -> None:
    source = toys.drafter_model(model)
    scale = torch.rand(96) + 0.5
    drafter = DrafterModel(source.config)
    begin_as_drafter(drafter, source, scale)
    folded = Pupil(drafter, scale).fold()
    for name, value in source.state_dict().items():
        torch.testing.assert_close(folded[name], value)
