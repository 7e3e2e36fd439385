"""Runs a compiler in a process of its own and moves what it made into place, whole or not at all.

    python build.py WORK TARGET COMMAND...

COMMAND compiles to `WORK/library.so`. WORK is made here and removed again. It outlives the process that started it on
purpose: a reply is often shorter than a build, and the next start finds the result. Standard library only.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path


def build(work: Path, target: Path, command: list[str]) -> str | None:
    """None, or why it failed."""
    work.mkdir(parents=True)
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if (
            result.returncode != 0 and "-fopenmp" in command
        ):  # a compiler without OpenMP: one thread is better than none
            command = [part for part in command if part != "-fopenmp"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            last = "\n".join(result.stderr.strip().splitlines()[-5:])
            return f"{command[0]} failed with status {result.returncode}: {last}"
        library = work / "library.so"
        checksum = work / "checksum"
        checksum.write_text(hashlib.sha256(library.read_bytes()).hexdigest())
        library.replace(target)
        checksum.replace(target.with_suffix(".sha256"))
    except OSError as error:
        return str(error)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return None


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
