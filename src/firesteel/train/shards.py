"""One seed's shards in a folder: what they hold already, and what is added to them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from firesteel.train.conversations import Conversation, read_shard, write_shard

SHARD_LEN = 64


class Shards:
    """Collects conversations and writes a shard whenever enough are there; used in a `with`, it writes the rest.

    Each shard says which conversations of the run it holds, so a run that was killed goes on with all that are missing.

    Args:
        folder: made when missing.
        seed: of the run; it is part of each file's name.
        size: conversations of a shard.

    Fields:
        done: indices of the conversations that are on disk.

    Raises:
        DamagedData: a shard of this seed cannot be read.
    """

    def __init__(self, folder: Path, seed: int, size: int = SHARD_LEN) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._prefix, self._size = folder, f"shard{seed:02d}_", size
        numbered = {}
        for file in sorted(folder.glob(f"{self._prefix}*.npz")):
            if (number := file.stem.removeprefix(self._prefix)).isdigit():
                numbered[int(number)] = read_shard(file)
        self._next = max(numbered, default=-1) + 1
        self._held: list[Conversation] = []
        self.done = {conversation.index for shard in numbered.values() for conversation in shard}

    def add(self, conversations: Iterable[Conversation]) -> None:
        """Take conversations; those of one index together."""
        self._held.extend(conversations)
        if len(self._held) >= self._size:
            self.write()

    def write(self) -> None:
        """Write what is held, if anything."""
        if self._held:
            write_shard(self._folder / f"{self._prefix}{self._next:04d}.npz", self._held)
            self.done.update(conversation.index for conversation in self._held)
            self._next += 1
            self._held = []

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *_: object) -> None:
        self.write()  # after an error too: what is held is whole
