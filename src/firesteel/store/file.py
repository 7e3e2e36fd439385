"""One file of learned things: JSON that a person can read, sealed with a checksum, replaced whole or not at all.

    {
    "format": 1,
    "belongs_to": { target, drafter, device, ... },                              an `Owner`: the name is made of it
    "policies": {
    "auto": {"written": when, "rounds": n, "requests": n, "state": {...}}        a line per policy
    },
    "sha256": "of all lines above"
    }

Two processes may share a file. Each reads it, puts its own policy's learning in and replaces it: whoever looks sees one
whole version or another. Of one policy the learning of more rounds stays. There is no lock, which a dead process could
leave behind: of two processes that write within the same few milliseconds the later one wins, and the file holds what
the other learned again after its next write.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from firesteel.errors import DamagedState, InvalidParameter
from firesteel.fit.stored import field, whole
from firesteel.paths import cache_path, write_whole
from firesteel.store.owner import Owner

FORMAT: Final = 1
MOST_BYTES: Final = 1 << 24
_SEAL = ',\n"sha256": "'

Say = Callable[[str], None]


@dataclass(frozen=True)
class Learned:
    """What one policy learned.

    Fields:
        written: when, UTC.
        rounds, requests: that it learned from, those of earlier processes among them.
        state: `Policy.state()`.
    """

    written: str
    rounds: int
    requests: int
    state: Any

    @classmethod
    def of(cls, state: Any) -> Learned:
        """What these JSON values say. Raises DamagedState."""
        written = field(state, "written")
        if not isinstance(written, str):
            raise DamagedState(f"stored state: 'written' is {written!r}, not a time")
        return cls(written, whole(state, "rounds"), whole(state, "requests"), field(state, "state"))


@dataclass(frozen=True)
class Stored:
    """A whole file: whose it is, and what each policy learned, by the policy's name."""

    owner: Owner
    policies: Mapping[str, Learned]


def store_folder(store: bool | str | Path) -> Path | None:
    """The folder of `True`, the user's own; of a path; and of `False`, none. Nothing is created.

    Raises:
        InvalidParameter: something else than a folder is there.
    """
    if isinstance(store, bool):
        return cache_path("store") if store else None
    folder = Path(store).expanduser()
    if folder.exists() and not folder.is_dir():
        raise InvalidParameter(f"a store is a folder, and {store} is none")
    return folder


def files_of(folder: Path) -> list[Path]:
    """All files of a store: those in use, those set aside, and what killed processes left behind."""
    patterns = ("*.json", "*.json.damaged-*", ".*.json.*")
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def read(file: Path) -> Stored:
    """A file, none of which is believed before all of it is checked.

    Raises:
        DamagedState: it is cut short, was changed, is something else, or belongs to something else than its name says.
        OSError: it is not there or cannot be read.
    """
    if file.stat().st_size > MOST_BYTES:
        raise DamagedState(f"it is larger than {MOST_BYTES} bytes")
    try:
        text = file.read_bytes().decode()
        body, _, end = text.rpartition(_SEAL)
        if end != _end(body):
            raise DamagedState("it is cut short or was changed: its checksum is not that of its lines")
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, DamagedState) else DamagedState(f"it is not JSON: {error}") from error
    if whole(values, "format") != FORMAT:
        raise DamagedState(f"it is of format {values['format']}, not {FORMAT}")
    owner, policies = Owner.of(field(values, "belongs_to")), field(values, "policies")
    if owner.file_name() != file.name:
        raise DamagedState(f"its header belongs to a file named {owner.file_name()}")
    if not isinstance(policies, dict):
        raise DamagedState("its policies are no table")
    return Stored(owner, {name: Learned.of(one) for name, one in policies.items()})


def taken(file: Path, say: Say) -> dict[str, Learned]:
    """What a file's policies learned; nothing where there is none, or one that is no good and is now set aside."""
    try:
        return dict(read(file).policies)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (DamagedState, OSError) as error:
        set_aside(file, str(error), say)
        return {}


def set_aside(file: Path, reason: str, say: Say) -> None:
    """Rename a file that is no good, with one line for the user."""
    aside = file.with_name(f"{file.name}.damaged-{now().replace(':', '')}")
    try:
        file.rename(aside)
    except FileNotFoundError:  # another process was quicker
        return
    except OSError as error:
        say(f"the store {file} is not used ({reason}) and cannot be renamed to {aside.name} ({error.strerror})")
        return
    say(f"the store {file} is not used ({reason}): set aside as {aside.name}, learning starts from empty")


def keep(file: Path, owner: Owner, name: str, learned: Learned, say: Say) -> None:
    """Put one policy's learning into the file, unless the file's is of more rounds.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    policies = taken(file, say)
    if name in policies and policies[name].rounds > learned.rounds:
        return
    text = to_text(Stored(owner, {**policies, name: learned}))
    with write_whole(file) as temporary, temporary.open("wb") as stream:
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())  # on the disk before it has the name: a power cut leaves the old file


def to_text(stored: Stored) -> str:
    """The file's text."""
    owner = json.dumps(asdict(stored.owner), indent=2)
    lines = [f"{json.dumps(name)}: {json.dumps(asdict(one))}" for name, one in sorted(stored.policies.items())]
    body = f'{{\n"format": {FORMAT},\n"belongs_to": {owner},\n"policies": {{\n' + ",\n".join(lines) + "\n}"
    return body + _SEAL + _end(body)


def _end(body: str) -> str:
    return f'{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'
