"""One training run from its data to a checkpoint: what is kept in its folder, and what it says on the way.

output/
  start.pt        the drafter's configuration and vocabulary, chosen once
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

import numpy as np
import torch

from firesteel.errors import InvalidParameter
from firesteel.model import Model
from firesteel.models.drafters.checkpoint import save_drafter
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.model import DrafterModel
from firesteel.models.weights import embedding_and_head
from firesteel.paths import write_whole
from firesteel.train.conversations import Conversation, read_folder, without_loops
from firesteel.train.curve import draw_curve
from firesteel.train.lessons import Teacher
from firesteel.train.pupil import Pupil
from firesteel.train.start import Design, begin_as_target, channel_scale, choose_mask, configure, randomise
from firesteel.train.trainer import TrainConfig, Trainer
from firesteel.train.validation import validate
from firesteel.train.vocabulary import choose_vocabulary

SAMPLED = 64  # lessons behind the channel scales, the vocabulary and the first weights
VALIDATED = 24  # greedy conversations that are never trained on


def read_data(folders: Sequence[Path], limit: int | None = None) -> list[Conversation]:
    """The conversations of several folders, loops cut, each text once; errors as `read_folder`.

    `limit` takes that many, evenly spread: the first of a larger limit are not those of a smaller one.
    """
    seen: dict[bytes, Conversation] = {}
    for folder in folders:
        for conversation in map(without_loops, read_folder(folder)):
            seen.setdefault(np.asarray(conversation.ids, np.int64).tobytes(), conversation)
    found = list(seen.values())
    if limit is None or limit >= len(found):
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


class Course:
    """A run. Raises InvalidParameter when its folder holds a run of another design, or there is too little data.

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
    ) -> None:
        self.folder, self.notes = folder, list[str]()
        folder.mkdir(parents=True, exist_ok=True)
        greedy = [conversation for conversation in data if conversation.temperature == 0]
        apart = {id(conversation) for conversation in greedy[:: max(1, len(greedy) // VALIDATED)][:VALIDATED]}
        self._validation = [c for c in data if id(c) in apart]
        train = [c for c in data if id(c) not in apart]
        if not train or not self._validation:
            raise InvalidParameter(f"{len(data)} conversations are too few to train and to validate on")
        sample = [teacher.lesson(conversation) for conversation in islice(train, SAMPLED)]
        drafter_config, kept = self._begun(model, teacher, design, train, sample)
        drafter = DrafterModel(drafter_config, kept)
        drafter.lend(*embedding_and_head(model.loaded))
        scale = channel_scale(sample)
        randomise(drafter, config.seed)
        if design.from_target:
            self.notes.append(begin_as_target(drafter, model.loaded.model.state_dict(), scale, sample))
        self._teacher = teacher
        self.trainer = Trainer(drafter, scale, teacher, train, config, folder)
        resumed = self.trainer.resume()
        self.notes.append(f"{len(train)} conversations to train on, {len(self._validation)} to validate on")
        if resumed:
            self.notes.append(f"going on from step {self.trainer.step}")
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=20)

    def _begun(
        self, model: Model, teacher: Teacher, design: Design, train: Sequence[Conversation], sample: Sequence
    ) -> tuple[DrafterConfig, torch.Tensor | None]:
        """The drafter's configuration and vocabulary: those of `start.pt`, or new ones that are kept there."""
        path, wanted = self.folder / "start.pt", asdict(design)
        if path.exists():
            held = torch.load(path, weights_only=True)
            if held["design"] != wanted:
                changed = [key for key in wanted if held["design"].get(key) != wanted[key]]
                raise InvalidParameter(f"{self.folder} holds a run with another {', '.join(changed)}")
            design = replace(design, mask_token_id=held["mask_token_id"])
            return configure(design, model.loaded.config, model.loaded.name), held["kept"]
        if design.mask_token_id is None:
            tokenizer, rows = model.loaded.tokenizer, model.target.shape.vocab_size
            counts = np.zeros(rows, np.int64)
            for conversation in train:
                np.add.at(counts, np.asarray(conversation.ids, np.int64), 1)
            design = replace(
                design,
                mask_token_id=choose_mask(counts.tolist(), [*tokenizer.get_added_vocab().values()], len(tokenizer)),
            )
        config = configure(design, model.loaded.config, model.loaded.name)
        kept = choose_vocabulary(train, sample, config.vocab, config.draft_vocab) if config.reduced else None
        with write_whole(path) as temporary:
            torch.save({"design": wanted, "mask_token_id": design.mask_token_id, "kept": kept}, temporary)
        return config, kept

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
        """Validate, save the state, and write the drafter as it is now."""
        trainer = self.trainer
        pupil = trainer.accelerator.unwrap_model(trainer.pupil)
        if trainer.accelerator.is_main_process:
            result = validate(pupil, [self._teacher.lesson(c) for c in self._validation], trainer.draft_ids)
            trainer.log(step=trainer.step, seconds=trainer.seconds, validation=asdict(result))
            self._write(pupil)
            draw_curve(self.folder)
        trainer.save()

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
