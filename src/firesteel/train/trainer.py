"""The training loop: a few conversations a step, many anchors in each, resumable at any step.

Which conversations and anchors a step sees is a function of the seed and the step's number alone, so that a run that
was interrupted goes on exactly as it would have.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from firesteel.errors import InvalidParameter
from firesteel.models.drafters.model import DrafterModel
from firesteel.paths import write_whole
from firesteel.train.batches import Batch, anchors_of, make_batch
from firesteel.train.conversations import Conversation
from firesteel.train.lessons import Teacher
from firesteel.train.losses import Loss, LossConfig, combine
from firesteel.train.pupil import Pupil
from firesteel.train.vocabulary import draft_ids_of


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train.

    Fields:
        steps: of the whole run; the learning rate falls to zero over them.
        conversations, anchors: per step and process; anchors per conversation.
        learning_rate, warmup, weight_decay, clip: of AdamW; warmup in steps; clip is a norm.
        loss: weights of the loss.
        seed: of the order of conversations and of the anchors.
    """

    steps: int
    conversations: int = 2
    anchors: int = 96
    learning_rate: float = 1e-3
    warmup: int = 100
    weight_decay: float = 0.0
    clip: float = 1.0
    loss: LossConfig = field(default_factory=LossConfig)
    seed: int = 0

    def rate(self, step: int) -> float:
        """Learning rate at a step: linear warm-up, then half a cosine to zero."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


class Trainer:
    """Trains one drafter.

    Args:
        model: with its embedding and head lent; its `fc` reads features divided by `scale`.
        scale: `[F]`, see `firesteel.train.start.channel_scale`.
        teacher: makes lessons.
        data: conversations to learn from; the same in every process.
        folder: keeps `state.pt`, to resume from, and `log.jsonl`.

    Attributes:
        step, seconds: how far it is, over all its sessions.
        draft_ids: see `firesteel.train.batches.make_batch`.
    """

    def __init__(
        self,
        model: DrafterModel,
        scale: Tensor,
        teacher: Teacher,
        data: Sequence[Conversation],
        config: TrainConfig,
        folder: Path,
    ) -> None:
        if not data:
            raise InvalidParameter("there are no conversations to learn from")
        self.config, self.folder, self._teacher, self._data = config, folder, teacher, data
        on_gpu = torch.cuda.is_available()
        self.accelerator = Accelerator(mixed_precision="bf16" if on_gpu else "no", cpu=not on_gpu)
        optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.pupil, self._optimizer = self.accelerator.prepare(Pupil(model, scale), optimizer)
        self.step = 0
        self.seconds = 0.0
        self.draft_ids = draft_ids_of(None if model.kept is None else model.kept.cpu(), model.config.vocab)

    @property
    def drafter(self) -> DrafterModel:
        """The drafter in training."""
        return self.accelerator.unwrap_model(self.pupil).drafter

    def conversations_of(self, step: int) -> list[Conversation]:
        """This process's conversations of a step: every one is seen once before any is seen again."""
        each, ranks = self.config.conversations, self.accelerator.num_processes
        first = (step * ranks + self.accelerator.process_index) * each
        chosen = []
        for number in range(first, first + each):
            epoch, index = divmod(number, len(self._data))
            order = np.random.default_rng((self.config.seed, epoch)).permutation(len(self._data))
            chosen.append(self._data[order[index]])
        return chosen

    def train_step(self) -> Loss:
        """One update."""
        begun = time.monotonic()
        lessons = [self._teacher.lesson(conversation) for conversation in self.conversations_of(self.step)]
        chance = np.random.default_rng((self.config.seed, self.step, self.accelerator.process_index))
        anchors = [self._some(anchors_of(lesson), chance) for lesson in lessons]
        batch = make_batch(lessons, anchors, self.drafter.config, self.draft_ids).to(self.accelerator.device)
        loss = self.loss(batch)
        for group in self._optimizer.param_groups:
            group["lr"] = self.config.rate(self.step)
        self._optimizer.zero_grad(set_to_none=True)
        self.accelerator.backward(loss.total)
        self.accelerator.clip_grad_norm_(self.pupil.parameters(), self.config.clip)
        self._optimizer.step()
        self.step += 1
        self.seconds += time.monotonic() - begun
        return loss

    def _some(self, anchors: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        if len(anchors) <= self.config.anchors:
            return anchors
        return np.sort(chance.choice(anchors, self.config.anchors, replace=False))

    def loss(self, batch: Batch) -> Loss:
        """The loss of a batch."""
        with self.accelerator.autocast():
            said = self.pupil(batch)
        return combine(said, batch.slots, self.config.loss)

    def save(self) -> None:
        """Keep everything that `resume` needs."""
        if not self.accelerator.is_main_process:
            return
        state = {
            "pupil": self.accelerator.unwrap_model(self.pupil).state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "config": asdict(self.config),
        }
        with write_whole(self.folder / "state.pt") as path:
            torch.save(state, path)

    def resume(self) -> bool:
        """Go on from `state.pt`; whether there was one.

        Raises:
            InvalidParameter: it was made under another configuration.
        """
        path = self.folder / "state.pt"
        if not path.exists():
            return False
        state = torch.load(path, map_location=self.accelerator.device, weights_only=True)
        before, now = state["config"], asdict(self.config)
        # The steps may change: a schedule is cut, or stretched, to the time there is.
        if changed := [key for key in now if key != "steps" and before.get(key) != now[key]]:
            raise InvalidParameter(f"{path} was made with another {', '.join(changed)}; use another folder")
        self.accelerator.unwrap_model(self.pupil).load_state_dict(state["pupil"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        return True

    def log(self, **numbers: Any) -> None:
        """Append a line to the log."""
        if self.accelerator.is_main_process:
            with (self.folder / "log.jsonl").open("a") as file:
                file.write(json.dumps(numbers) + "\n")
