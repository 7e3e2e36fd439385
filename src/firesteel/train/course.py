"""One training run from its data to a checkpoint: what is kept in its folder, and what it says on the way.

output/
  start.pt        the drafter's configuration and vocabulary, and what is validated on: chosen once
  state.pt        weights, optimiser, step: what a run goes on from
  log.jsonl       loss and validation by step
  curve.svg       the log, drawn
  drafter/        config.json and model.safetensors, as `--drafter` takes them
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from firesteel.errors import InvalidParameter
from firesteel.model import Model
from firesteel.models.drafters.checkpoint import save_drafter
from firesteel.models.drafters.model import DrafterModel
from firesteel.models.weights import embedding_and_head
from firesteel.paths import write_whole
from firesteel.train.conversations import Conversation, read_folder, without_loops
from firesteel.train.curve import draw_curve
from firesteel.train.lessons import Lesson, Teacher
from firesteel.train.pupil import Pupil
from firesteel.train.start import (
    Design,
    begin_as_drafter,
    begin_as_target,
    channel_scale,
    choose_mask,
    configure,
    randomise,
)
from firesteel.train.trainer import TrainConfig, Trainer
from firesteel.train.validation import validate
from firesteel.train.vocabulary import choose_vocabulary

SAMPLED = 64  # lessons behind the channel scales, the vocabulary and the first weights
VALIDATED = 24  # greedy conversations that are never trained on


def read_data(folders: Sequence[Path], limit: int | None = None, vocab_size: int | None = None) -> list[Conversation]:
    """The conversations of several folders, loops cut, each text once; errors as `read_folder`.

    `limit` takes that many, evenly spread: the first of a larger limit are not those of a smaller one.
    """
    seen: dict[bytes, Conversation] = {}
    for folder in folders:
        for conversation in map(without_loops, read_folder(folder, vocab_size)):
            seen.setdefault(np.asarray(conversation.ids, np.int64).tobytes(), conversation)
    found = list(seen.values())
    if limit is None or limit >= len(found):
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


def own_device() -> str:
    """Where this process trains; `accelerate launch` starts one for each GPU."""
    return str(PartialState(cpu=not torch.cuda.is_available()).device)


class Course:
    """A run. Raises InvalidParameter when its folder holds a run of another design, or there is too little data.

    Args:
        source: a drafter to go on from, whose design replaces `design`; None begins a new one.

    Attributes:
        notes: lines about how it began.
        trainer: the loop's state.
    """

    def __init__(
        self,
        model: Model,
        teacher: Teacher,
        data: Sequence[Conversation],
        design: Design,
        config: TrainConfig,
        folder: Path,
        source: DrafterModel | None = None,
    ) -> None:
        self.folder, self.notes = folder, list[str]()
        self._teacher, self._kept_at = teacher, -1
        wanted = {"target": Path(model.loaded.name).name, **asdict(design)}
        # The main process chooses what is chosen once, and makes the lessons that the others then find.
        with PartialState(cpu=not torch.cuda.is_available()).main_process_first():
            held = self._held(wanted)
            train, self._validation = self._apart(data, held)
            sample = [teacher.lesson(conversation) for conversation in islice(train, SAMPLED)]
            if held is None:
                held = self._chosen(model, design, train, sample, source)
                self._write_chosen({"design": wanted, **held})
        if source is None:
            design = replace(design, mask_token_id=held["mask_token_id"])
            drafter_config = configure(design, model.loaded.config, model.loaded.name)
        else:
            drafter_config = source.config
        kept = held["kept"]
        drafter = DrafterModel(drafter_config, kept)
        drafter.lend(*embedding_and_head(model.loaded))
        scale = channel_scale(sample)
        randomise(drafter, config.seed)
        first = ""
        if source is not None:
            first = begin_as_drafter(drafter, source, scale)
        elif design.from_target:
            first = begin_as_target(drafter, model.loaded.model.state_dict(), scale, sample)
        self.trainer = Trainer(drafter, scale, teacher, train, config, folder)
        self.notes.append(f"{len(train)} conversations to train on, {len(self._validation)} to validate on")
        if self.trainer.resume():
            self.notes.append(f"going on from step {self.trainer.step}")
            self._kept_at = self.trainer.step
        elif first:
            self.notes.append(first)
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=20)

    @property
    def speaks(self) -> bool:
        """Whether this is the process that talks to the user."""
        return self.trainer.accelerator.is_main_process

    def agreed(self, over: bool) -> bool:
        """What the main process says of `over`: all stop at one step, for who goes on alone waits for ever."""
        if self.trainer.accelerator.num_processes == 1:
            return over
        return bool(broadcast_object_list([over])[0])

    def _held(self, wanted: dict[str, Any]) -> dict[str, Any] | None:
        """What `start.pt` holds, if it is there."""
        path = self.folder / "start.pt"
        if not path.exists():
            return None
        held = torch.load(path, weights_only=True)
        if changed := [key for key in wanted if held["design"].get(key, wanted[key]) != wanted[key]]:
            raise InvalidParameter(f"{self.folder} holds a run with another {', '.join(changed)}; use another folder")
        return held

    def _apart(
        self, data: Sequence[Conversation], held: dict[str, Any] | None
    ) -> tuple[list[Conversation], list[Conversation]]:
        """Conversations to train and to validate on; what a run began to validate on is never trained on later."""
        greedy = [conversation for conversation in data if conversation.temperature == 0]
        if not greedy:
            raise InvalidParameter(
                f"none of {len(data)} conversations is greedy (temperature 0), and validation takes those"
            )
        count = min(VALIDATED, max(1, len(greedy) // 4))
        chosen = {self._name(conversation) for conversation in greedy[:: len(greedy) // count][:count]}
        if held is not None:
            chosen = set(held.get("validation", chosen))
        train = [conversation for conversation in data if self._name(conversation) not in chosen]
        validation = [conversation for conversation in data if self._name(conversation) in chosen]
        if not train or not validation:
            raise InvalidParameter(f"{len(data)} conversations are too few to train and to validate on")
        return train, validation

    def _name(self, conversation: Conversation) -> str:
        return self._teacher.path(conversation).stem

    def _chosen(
        self,
        model: Model,
        design: Design,
        train: Sequence[Conversation],
        sample: Sequence[Lesson],
        source: DrafterModel | None,
    ) -> dict[str, Any]:
        """What is chosen once: the mask's token, the draft vocabulary, what is validated on."""
        validation = [self._name(conversation) for conversation in self._validation]
        if source is not None:
            return {"mask_token_id": source.config.mask_token_id, "kept": source.kept, "validation": validation}
        vocab, mask = model.target.shape.vocab_size, design.mask_token_id
        if mask is None:
            counts = np.zeros(vocab, np.int64)
            for conversation in train:
                np.add.at(counts, np.asarray(conversation.ids, np.int64), 1)
            tokenizer = model.loaded.tokenizer
            mask = choose_mask(counts.tolist(), [*tokenizer.get_added_vocab().values()], len(tokenizer))
        kept = None if design.vocab in (None, vocab) else choose_vocabulary(train, sample, vocab, design.vocab)
        return {"mask_token_id": mask, "kept": kept, "validation": validation}

    def _write_chosen(self, chosen: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with write_whole(self.folder / "start.pt") as temporary:
            torch.save(chosen, temporary)

    def step(self, every: int) -> str:
        """One step, with a validation and a save whenever `every` divides it; a line about where training stands."""
        trainer = self.trainer
        loss = trainer.train_step()
        self._recent.append((float(loss.total.detach()), loss.alpha, loss.tokens_per_round))
        total, alpha, tokens = np.mean(self._recent, axis=0).tolist()
        if trainer.step % 10 == 0:
            trainer.log(step=trainer.step, seconds=trainer.seconds, loss=total, alpha=alpha, tokens_per_round=tokens)
        if trainer.step % every == 0:
            self.keep()
        return f"loss {total:.3f}, accepted {alpha:.3f}, about {tokens:.2f} tokens a round"

    def keep(self) -> None:
        """Validate, save the state, and write the drafter as it is now, unless this step's are there already."""
        trainer = self.trainer
        if trainer.step == self._kept_at:
            return
        pupil = trainer.accelerator.unwrap_model(trainer.pupil)
        if trainer.accelerator.is_main_process:
            result = validate(pupil, [self._teacher.lesson(c) for c in self._validation], trainer.draft_ids)
            trainer.log(step=trainer.step, seconds=trainer.seconds, validation=asdict(result))
            self._write(pupil)
            draw_curve(self.folder)
        trainer.save()
        self._kept_at = trainer.step
        trainer.accelerator.wait_for_everyone()

    def _write(self, pupil: Pupil) -> None:
        """Replace `drafter/` by the drafter as it is now."""
        made, folder = self.folder / ".drafter", self.folder / "drafter"
        shutil.rmtree(made, ignore_errors=True)
        save_drafter(pupil.fold(), pupil.drafter.config, made, kept=pupil.drafter.kept)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)

    def finish(self) -> str:
        """A last line."""
        return (
            f"step {self.trainer.step}, {self.trainer.seconds / 3600:.2f} hours; drafter in {self.folder / 'drafter'}"
        )
