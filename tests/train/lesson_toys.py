"""Lessons of a toy target, made in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from firesteel.models.hf import TransformersTarget
from firesteel.train.conversations import Conversation
from firesteel.train.lessons import Lesson, Teacher
from tests import toys

TAPS = (0, 1)


def target(model: Any) -> TransformersTarget:
    return TransformersTarget(model, taps=TAPS)


def greedy_reply(of: TransformersTarget, prompt: list[int], tokens: int) -> Conversation:
    """A conversation whose reply is the target's greedy one."""
    request = toys.request(prompt, "r", max_tokens=tokens)
    toys.decode(of, [request])
    return Conversation(np.array([*prompt, *request.output]), len(prompt), 0.0)


def lesson(of: TransformersTarget, conversation: Conversation, folder: Path, top: int = toys.VOCAB) -> Lesson:
    return Teacher(of, "toy", top=top, folder=folder).lesson(conversation)


def random_conversation(length: int, prompt_len: int, seed: int = 0) -> Conversation:
    chance = np.random.default_rng(seed)
    return Conversation(chance.integers(0, toys.VOCAB - 1, length), prompt_len, 1.0)


def lend(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()
