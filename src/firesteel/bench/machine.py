"""What machine this is, as every result file says it; and what it can do at best."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from typing import Any

import torch

from firesteel import processor

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def machine() -> dict[str, Any]:
    """Processor, cores, instruction sets, threads and versions."""
    info = {
        "processor": processor.name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instruction_sets": instruction_sets(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "firesteel": importlib.metadata.version("firesteel"),
    }
    if torch.cuda.is_available():
        info["gpu"] = torch.cuda.get_device_name()
    return info


def instruction_sets() -> list[str]:
    """The vector instruction sets that decide which kernels are fast."""
    flags = set(processor.value("flags").split())
    return [flag for flag in _FLAGS if flag in flags]


def read_bandwidth(megabytes: int = 512, repeats: int = 5) -> float:
    """Bytes per second of the best of a few reads of a buffer that no cache holds, with all threads."""
    buffer = torch.ones(megabytes * 2**20 // 4)
    best = float("inf")
    for _ in range(repeats):
        begun = time.perf_counter()
        buffer.sum()
        best = min(best, time.perf_counter() - begun)
    return buffer.numel() * 4 / best
