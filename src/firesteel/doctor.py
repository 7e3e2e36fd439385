"""`doctor`: what this machine can do, and what would be slow on it."""

from __future__ import annotations

import shutil
from typing import Any

import torch

from firesteel.bench.machine import instruction_sets, machine, read_bandwidth
from firesteel.models.target import Target

_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}


def examine(target: Target, parameters: int) -> dict[str, Any]:
    """Facts of the machine, and the ceiling that memory sets to plain decoding of the target.

    Args:
        parameters: weights that one forward reads.
    """
    bandwidth = read_bandwidth()
    return {
        "machine": machine(),
        "read_bandwidth_gb_per_s": bandwidth / 1e9,
        "ceiling_tokens_per_s": {dtype: bandwidth / (parameters * size) for dtype, size in _BYTES.items()},
        "advice": advice(),
    }


def advice() -> list[str]:
    """What would be slow here, and why."""
    sets, found = set(instruction_sets()), []
    if not torch.cuda.is_available() and not sets:
        found.append("no AVX2: every forward will be slow on this processor")
    if not torch.cuda.is_available() and not sets & {"avx512_bf16", "amx_bf16"}:
        found.append("no bf16 instructions: bf16 halves the memory a forward reads but computes in fp32")
    if not torch.cuda.is_available() and not sets & {"avx512_vnni", "amx_int8"}:
        found.append(
            "no VNNI instructions: an int8 product takes two instructions instead of one, so wide verifies gain less"
        )
    if torch.get_num_threads() == 1:
        found.append("one thread: the memory's bandwidth is probably not reached")
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        found.append("no C++ compiler: the compiled mode is not available, forwards run eagerly")
    return found
