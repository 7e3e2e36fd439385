"""Where firesteel keeps what it made: one folder, which may be deleted at any time."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_path(*parts: str) -> Path:
    """`$XDG_CACHE_HOME/firesteel` (by default `~/.cache/firesteel`) and a path below it, which may not be there."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firesteel"
    return root.joinpath(*parts)


def cache_folder(*parts: str) -> Path:
    """The folder at `cache_path`, created when missing."""
    folder = cache_path(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` when the block ends well: nobody ever sees half of it."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        yield made
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():  # another process was quicker: its result is as good
                raise


@contextmanager
def write_whole(file: Path) -> Iterator[Path]:
    """A temporary path whose file replaces `file` when the block ends well: a killed run leaves the old one."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}-{secrets.token_hex(4)}")  # threads may write it too
    try:
        yield temporary
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
