"""What /proc/cpuinfo says of this machine's processors; nothing where there is no such file."""

from __future__ import annotations

import platform
from pathlib import Path


def lines(*fields: str) -> list[str]:
    """The lines of these fields as they stand, each once: processors of one kind repeat each other."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    return list(dict.fromkeys(line for line in text.splitlines() if line.partition(":")[0].strip() in fields))


def value(field: str) -> str:
    """The first processor's value of a field, or ""."""
    return next((line.partition(":")[2].strip() for line in lines(field)), "")


def name() -> str:
    """The processor as the system calls it."""
    return value("model name") or platform.processor() or platform.machine()
