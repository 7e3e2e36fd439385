"""Conversations on disk: shards of token ids. numpy only.

A shard is `shard*.npz` with one entry per conversation in each array but the first two:

    ids          uint16 (int32 where the ids do not fit)   all token ids, one conversation after another: the prompt
                                                           with its template, then the reply, with the end-of-turn
                                                           token where the reply ended by itself
    offsets      int32 (int64)                             where each conversation begins, and where the last one ends
    prompt_len   int16 (int32)                             tokens before the reply
    temperature  float16                                   of the reply
    index        int64, may be absent                      which conversation of its run it is
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from firesteel.bench.statistics import is_looped
from firesteel.errors import DamagedData, InvalidParameter
from firesteel.paths import write_whole
from firesteel.tree import IntArray

LONGEST_PERIOD = 64  # of a loop, in tokens: `is_looped`'s own


@dataclass(frozen=True, eq=False)
class Conversation:
    """One prompt and its reply.

    Fields:
        ids: `int[T]` the prompt with its template, then the reply.
        prompt_len: tokens before the reply, 0 < prompt_len < T.
        temperature: of the reply; 0 is greedy.
        index: which conversation of its run it is; -1 where its shard does not say.
    """

    ids: IntArray
    prompt_len: int
    temperature: float
    index: int = -1

    @property
    def reply(self) -> IntArray:
        """The reply's tokens."""
        return self.ids[self.prompt_len :]

    @property
    def looped(self) -> bool:
        """Whether the reply ends in a repetition loop: see `firesteel.bench.statistics.is_looped`."""
        return is_looped(self.reply.tolist())


def shard_files(folder: Path) -> list[Path]:
    """The shards of a folder, sorted by name.

    Raises:
        InvalidParameter: there are none.
    """
    files = sorted(folder.glob("shard*.npz"))
    if not files:
        raise InvalidParameter(f"no shard*.npz in {folder}")
    return files


def read_folder(folder: Path, vocab_size: int | None = None) -> Iterator[Conversation]:
    """Every conversation of a folder's shards, shard by shard; errors as `shard_files` and `read_shard`."""
    return (conversation for file in shard_files(folder) for conversation in read_shard(file, vocab_size))


def read_shard(file: Path, vocab_size: int | None = None) -> list[Conversation]:
    """The conversations of one shard.

    Args:
        vocab_size: ids must be below it; None checks no upper bound.

    Raises:
        DamagedData: not a shard, or a record that cannot be; the message names the file and the record (from 0).
    """
    arrays = _load(file)
    ids, offsets, prompt_len = arrays["ids"], arrays["offsets"].astype(np.int64), arrays["prompt_len"]
    records = len(prompt_len)
    index = arrays.get("index", np.full(records, -1))
    if not len(offsets) - 1 == records == len(arrays["temperature"]) == len(index):
        raise DamagedData(
            f"{file}: {len(offsets)} offsets, {records} prompt_len, {len(arrays['temperature'])} temperature and "
            f"{len(index)} index; there must be one more offset than of the others"
        )
    if offsets[0] != 0 or offsets[-1] != len(ids):
        raise DamagedData(f"{file}: offsets go from {offsets[0]} to {offsets[-1]}, but ids from 0 to {len(ids)}")

    lengths = np.diff(offsets)
    _check(file, lengths > 0, "its offsets do not rise")
    _check(file, (prompt_len > 0) & (prompt_len < lengths), "its prompt_len is not inside of it")
    _check(
        file, np.isfinite(arrays["temperature"]) & (arrays["temperature"] >= 0), "its temperature is not a number >= 0"
    )
    limit = 2**31 if vocab_size is None else vocab_size
    known = np.logical_and.reduceat((ids >= 0) & (ids < limit), offsets[:-1])
    _check(file, known, f"a token id is not in 0..{limit - 1}")
    return [
        Conversation(ids[start:end], int(prompt), round(float(temperature), 3), int(number))
        for start, end, prompt, temperature, number in zip(
            offsets[:-1], offsets[1:], prompt_len, arrays["temperature"], index, strict=True
        )
    ]


def write_shard(file: Path, conversations: Sequence[Conversation]) -> None:
    """Write a shard, whole or not at all; at least one conversation."""
    assert conversations, "a shard has at least one conversation"
    ids = np.concatenate([conversation.ids for conversation in conversations])
    offsets = np.cumsum([0, *(len(conversation.ids) for conversation in conversations)])
    prompt_len = np.array([conversation.prompt_len for conversation in conversations])
    with write_whole(file) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(
            stream,
            ids=ids.astype(np.uint16 if ids.max() < 2**16 else np.int32),
            offsets=offsets.astype(np.int32 if offsets[-1] < 2**31 else np.int64),
            prompt_len=prompt_len.astype(np.int16 if prompt_len.max() < 2**15 else np.int32),
            temperature=np.array([conversation.temperature for conversation in conversations], np.float16),
            index=np.array([conversation.index for conversation in conversations], np.int64),
        )


def without_loops(conversation: Conversation) -> Conversation:
    """The conversation with a reply that ends in a repetition loop cut after the loop's second copy.

    Greedy replies of small models often loop until their limit. To go on after the second copy is easily learnt, and
    thousands of such tokens would outweigh the text.
    """
    if not conversation.looped:
        return conversation
    reply, tokens = conversation.reply, conversation.reply.tolist()
    period = next(period for period in range(1, LONGEST_PERIOD + 1) if is_looped(tokens, longest_period=period))
    repeats = reply[period:] == reply[:-period]
    first = len(repeats) - int(np.argmin(repeats[::-1])) if not repeats.all() else 0  # where the first copy begins
    return replace(conversation, ids=conversation.ids[: conversation.prompt_len + first + 2 * period])


@dataclass(frozen=True)
class Count:
    """How much there is: conversations, tokens of their replies, and replies that end in a loop."""

    conversations: int = 0
    reply_tokens: int = 0
    looped: int = 0

    def plus(self, conversation: Conversation) -> Count:
        """With one more."""
        tokens = self.reply_tokens + len(conversation.reply)
        return Count(self.conversations + 1, tokens, self.looped + conversation.looped)


def summary(folder: Path, vocab_size: int | None = None) -> dict[float, Count]:
    """A count per temperature, rising; errors as `read_folder`."""
    counts: dict[float, Count] = {}
    for conversation in read_folder(folder, vocab_size):
        temperature = conversation.temperature
        counts[temperature] = counts.get(temperature, Count()).plus(conversation)
    return dict(sorted(counts.items()))


def _load(file: Path) -> dict[str, Any]:
    try:
        with np.load(file) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedData(f"{file} is not a shard: {error}") from error
    for name, kinds in {"ids": "iu", "offsets": "iu", "prompt_len": "iu", "temperature": "f"}.items():
        if name not in arrays:
            raise DamagedData(f"{file} is not a shard: it has no {name!r}")
        if (
            arrays[name].ndim != 1
            or arrays[name].dtype.kind not in kinds
            or (name == "offsets" and not len(arrays[name]))
        ):
            raise DamagedData(f"{file}: {name!r} is {arrays[name].dtype} of shape {arrays[name].shape}")
    return arrays


def _check(file: Path, good: np.ndarray[Any, Any], complaint: str) -> None:
    if not good.all():
        raise DamagedData(f"{file}, conversation {int(np.argmin(good))}: {complaint}")
