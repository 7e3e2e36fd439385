"""Prompts to measure with: the package's own held-out questions, or a folder of JSONL files like them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from itertools import chain, zip_longest
from pathlib import Path

from firesteel.errors import InvalidParameter, TargetNotFound

SHIPPED = Path(str(resources.files("firesteel"))) / "data" / "prompts"


@dataclass(frozen=True)
class Conversation:
    """User turns of one conversation; a later turn follows the model's own reply."""

    id: str
    source: str
    turns: tuple[str, ...]


def held_out(folder: Path | None = None, limit: int | None = None) -> list[Conversation]:
    """Lines 2, 4, 6, ... of every file: one of each source in turn, so that any limit is a fair mix.

    Args:
        folder: of `*.jsonl` files; None for the package's own.
        limit: most conversations.

    Raises:
        TargetNotFound: no such folder, or none with prompts.
        InvalidParameter: a line that is not a conversation, or no file has a second line.
    """
    folder = folder or SHIPPED
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise TargetNotFound(f"no *.jsonl prompts in {folder}")
    mixed = chain.from_iterable(zip_longest(*(_read(file)[1::2] for file in files)))
    found = [conversation for conversation in mixed if conversation is not None]
    if not found:
        raise InvalidParameter(f"no held-out prompts in {folder}: every second line of a file is one")
    return found[:limit]


def _read(file: Path) -> list[Conversation]:
    conversations = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            conversations.append(Conversation(str(record["id"]), str(record["source"]), tuple(record["turns"])))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidParameter(f"{file}, line {number} is not a conversation: {error!r}") from error
    return conversations
