"""User turns from a file: one JSON object a line, in the shapes that public data sets have."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from firesteel.errors import InvalidParameter
from firesteel.train.overlap import Overlap

USER_ROLES = ("user", "human")


def read_prompts(file: Path, overlap: Overlap, dropped: Counter[str] | None = None) -> dict[int, tuple[str, ...]]:
    """The user turns of every line, by line number from 1; empty lines are skipped.

    Args:
        file: lines of `{"prompt": text}`, `{"messages": [{"role", "content"}]}` or
            `{"conversations": [{"from", "value"}]}`.
        overlap: of the evaluation prompts.
        dropped: counts the lines that overlap and leaves them out; None makes them an error.

    Raises:
        InvalidParameter: no such file, or a line that has no user turn or holds an evaluation prompt; it is named.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise InvalidParameter(f"cannot read prompts from {file}: {error.strerror}") from error
    prompts = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            turns = _turns(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidParameter(f"{file}, line {number} is not a conversation: {error!r}") from error
        shared = next((found for turn in turns if (found := overlap.find(turn))), None)
        if shared is None:
            prompts[number] = turns
        elif dropped is None:
            raise InvalidParameter(
                f"{file}, line {number} holds an evaluation prompt ({shared!r}); --drop-overlaps leaves such lines out"
            )
        else:
            dropped["an evaluation prompt"] += 1
    return prompts


def read_openings(file: Path) -> tuple[str, ...]:
    """The lines of a text file that are not empty: beginnings of user turns.

    Raises:
        InvalidParameter: it cannot be read, or is empty.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"cannot read openings from {file}: {error}") from error
    if not (openings := tuple(line.strip() for line in lines if line.strip())):
        raise InvalidParameter(f"{file} has no openings")
    return openings


def _turns(record: dict[str, Any]) -> tuple[str, ...]:
    if "prompt" in record:
        turns = [record["prompt"]]
    elif messages := record.get("messages", record.get("conversations")):
        users = [message for message in messages if message.get("role", message.get("from")) in USER_ROLES]
        turns = [message["content"] if "content" in message else message["value"] for message in users]
    else:
        raise ValueError("it has neither prompt nor messages nor conversations")
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError("a user turn is missing, empty or not a text")
    return tuple(turns)
