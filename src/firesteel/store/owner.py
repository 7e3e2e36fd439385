"""What learned things belong to: measured on other weights, or on another machine, they say nothing here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from firesteel.errors import DamagedState
from firesteel.fit.stored import field

_MODEL_FILES = ("config.json", "*.safetensors", "*.bin", "*.gguf")
_SAMPLES, _BLOCK = 32, 4096  # of each file, its two ends among them: a few milliseconds, whatever its size


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The key of one file.

    Fields:
        target, drafter: as a person calls them.
        target_weights, drafter_weights: `fingerprint` of their files; "" for a drafter without weights.
        device: "cpu" or the accelerator's name.
        processor: the host's, with the vector instructions that are used.
        threads: of the forward.
        dtype: "fp32", "bf16" or "int8".
        mode: "compiled" or "eager".
        engine: the versions of firesteel and of what its forward runs on.
    """

    target: str
    target_weights: str
    drafter: str
    drafter_weights: str
    device: str
    processor: str
    threads: int
    dtype: str
    mode: str
    engine: str

    def file_name(self) -> str:
        """What a person recognises, then a hash of every field: owners that differ have different files."""
        readable = "-".join(_plain(part) for part in (self.target, self.drafter, self.dtype, self.mode))
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"{readable}-{digest[:16]}.json"

    @classmethod
    def of(cls, state: Any) -> Owner:
        """The owner whose fields these JSON values are.

        Raises:
            DamagedState: a field is missing, not of its kind, or not ours.
        """
        names = [one.name for one in fields(cls)]
        values = {name: field(state, name) for name in names}
        if extra := sorted(state.keys() - values.keys()):
            raise DamagedState(f"stored owner: {extra[0]!r} is no field of it")
        for name, value in values.items():
            if type(value) is not (int if name == "threads" else str):
                raise DamagedState(f"stored owner: {name!r} is {value!r}, not of its kind")
        return cls(**values)


def fingerprint(folder: Path) -> str:
    """Identifies a model's weights and configuration: names, sizes and sampled bytes of its files.

    Not their place or age: a copy is the same model. A change that every sample misses goes unnoticed; it would have to
    leave most of the weights as they are, and what was learned is then nearly right.
    """
    digest = hashlib.sha256()
    for file in _model_files(folder):
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as opened:
            for sample in range(_SAMPLES):
                opened.seek(sample * max(0, size - _BLOCK) // (_SAMPLES - 1))
                digest.update(opened.read(_BLOCK))
    return digest.hexdigest()[:16]


def _model_files(folder: Path) -> Iterator[Path]:
    yield from sorted({file for pattern in _MODEL_FILES for file in folder.glob(pattern) if file.is_file()})


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.")[:40]
