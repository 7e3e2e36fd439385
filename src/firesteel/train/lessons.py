"""What a drafter learns from one conversation: the target's features and the target's distribution at each token.

Both are functions of the target and the text alone. They are computed once, a conversation a forward, and kept on disk:
a file per conversation, named by the hash of its tokens, so that data may be added, mixed and revisited freely.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from firesteel.models.rows import pack
from firesteel.models.target import Target, new_cache
from firesteel.paths import cache_folder
from firesteel.train.conversations import Conversation
from firesteel.tree import TokenTree

CHUNK = 512


@dataclass(frozen=True, eq=False)
class Lesson:
    """One conversation of T tokens with R = T - first rows of teaching.

    Fields:
        ids: `int64[T]`.
        first: position of the first anchor: the last token of the prompt.
        temperature: of the reply; its tokens were drawn at it.
        features: `[T, taps * H]` outputs of the tapped layers.
        top_ids, top_probs: `int64[R, K]`, `float32[R, K]` the target's K likeliest tokens after each position from
            `first` on, and their probabilities at temperature 1 over the whole vocabulary.
    """

    ids: Tensor
    first: int
    temperature: float
    features: Tensor
    top_ids: Tensor
    top_probs: Tensor


class Teacher:
    """Makes lessons, or takes them from disk.

    Args:
        target: with the drafter's taps.
        name: what identifies the target and its dtype: lessons of different targets never mix.
        top: tokens of the target's distribution that are kept per position.
        folder: where lessons are kept; None for the cache folder.
    """

    def __init__(self, target: Target, name: str, *, top: int = 64, folder: Path | None = None) -> None:
        self.target, self.top = target, top
        key = hashlib.sha256(f"{name}|{target.taps}|{top}".encode()).hexdigest()[:16]
        self.folder = (folder or cache_folder("lessons")) / key
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, conversation: Conversation) -> Path:
        """Where the lesson of a conversation is kept."""
        ids = np.ascontiguousarray(conversation.ids, np.int64)
        return self.folder / f"{hashlib.sha256(ids.tobytes()).hexdigest()[:24]}.safetensors"

    def lesson(self, conversation: Conversation) -> Lesson:
        """The lesson of a conversation; made, and kept, on first use."""
        path = self.path(conversation)
        try:
            stored = load_file(path)
        except (FileNotFoundError, SafetensorError):  # not there, or half of it from a killed run
            stored = self._make(conversation)
            save_file(stored, path)
        return Lesson(
            ids=torch.from_numpy(np.asarray(conversation.ids, np.int64)),
            first=conversation.prompt_len - 1,
            temperature=conversation.temperature,
            features=stored["features"],
            top_ids=stored["top_ids"].long(),
            top_probs=stored["top_probs"].float(),
        )

    @torch.inference_mode()
    def _make(self, conversation: Conversation) -> dict[str, Tensor]:
        ids, first = np.asarray(conversation.ids, np.int64), conversation.prompt_len - 1
        cache = new_cache(self.target, 1)
        slot, device = cache.acquire(), self.target.device
        features, top_ids, top_probs = [], [], []
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            cache.reserve([slot], [len(part)])
            rows = pack([TokenTree.chain(int(part[0]), part[1:])], [slot], [start], device)
            keep = torch.arange(max(first - start, 0), max(len(part), first - start), device=device)
            logits, states = self.target.forward(rows, cache, keep=keep)
            cache.commit([slot], [np.arange(len(part))])
            features.append(states.to(torch.bfloat16).cpu())
            probs, tokens = logits.softmax(-1).topk(min(self.top, logits.shape[-1]))
            top_ids.append(tokens.int().cpu())
            top_probs.append(probs.half().cpu())
        return {
            "features": torch.cat(features),
            "top_ids": torch.cat(top_ids),
            "top_probs": torch.cat(top_probs),
        }
