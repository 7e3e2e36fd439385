"""The files of a drafter: where they are, and the tensors that their headers name, under one spelling.

Only json and safetensors are read. A pickle runs code when it is opened, so none ever is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from firesteel.errors import DamagedData, TargetNotFound, UnsupportedModel

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# A pickle that replaces the mask's embedding. It is fetched, since its presence changes the drafter, and never opened.
MASK_SIDE_FILE = "mask_embedding.pt"

# Of training alone, or what a rotary embedding once saved of itself.
_SKIPPED = ("t2d", "verifier_lm_head.weight", "verifier_norm.weight", "rotary_emb.inv_freq")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that has not been read yet."""

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def floating(self) -> bool:
        """Whether it holds weights as they are, rather than quantised."""
        return self.dtype in _FLOATS

    def read(self, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Its values."""
        with safe_open(self.file, framework="pt") as opened:
            return opened.get_tensor(self.key).to(device, dtype)


def folder_of(name: str, patterns: Iterable[str]) -> Path:
    """The folder of a drafter on this disk; the files of a hub id that match `patterns` are downloaded.

    Raises:
        TargetNotFound: neither a folder with a config.json nor a hub id.
    """
    path = Path(name).expanduser()
    if not name or not path.is_dir():
        if path.exists() or name.count("/") != 1 or name.startswith((".", "/", "~")):
            raise TargetNotFound(f"no drafter {name!r}: give a folder with a config.json or a hub id (owner/name)")
        path = _downloaded(name, patterns)
    if not (path / "config.json").is_file():
        raise TargetNotFound(f"{name} has no config.json, so it is not a drafter")
    return path


def _downloaded(name: str, patterns: Iterable[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=[*patterns, MASK_SIDE_FILE]))
    except (OSError, HFValidationError) as error:
        raise TargetNotFound(f"cannot load drafter {name!r}: {str(error).splitlines()[0]}") from error


def read_json(file: Path) -> Mapping[str, Any]:
    """A table in a json file.

    Raises:
        DamagedData: it is not json, or not a table.
    """
    try:
        table = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DamagedData(f"{file} cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise DamagedData(f"{file} is not a table of keys")
    return table


def stored_tensors(name: str, folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a drafter's safetensors by name; no weight is read.

    Names lose an optional prefix `model.`, and codebooks an optional suffix `.weight`.

    Raises:
        UnsupportedModel: there are only pickles.
        DamagedData: a file is missing or broken.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in _weight_files(name, folder):
        try:
            with safe_open(file, framework="pt") as opened:
                for key in opened.keys():  # noqa: SIM118  not a dict
                    part = opened.get_slice(key)
                    spelled = _spelled(key)
                    if spelled in tensors:
                        raise DamagedData(f"drafter {name} holds {spelled} twice")
                    tensors[spelled] = StoredTensor(file, key, tuple(part.get_shape()), part.get_dtype())
        except (OSError, SafetensorError) as error:
            raise DamagedData(f"{file} cannot be read: {error}") from error
    return {key: tensor for key, tensor in tensors.items() if key not in _SKIPPED}


def _weight_files(name: str, folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        parts = read_json(folder / INDEX).get("weight_map")
        if not isinstance(parts, dict):
            raise DamagedData(f"{folder / INDEX} has no weight_map")
        return [folder / part for part in sorted(set(parts.values()))]
    if files := sorted(folder.glob("*.safetensors")):
        return files
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES)
    found = f"only pickled ones ({', '.join(pickles)})" if pickles else "none"
    raise UnsupportedModel(
        f"drafter {name} has no weights in safetensors, {found}: a pickle could run code, so none is read"
    )


def _spelled(key: str) -> str:
    key = key.removeprefix("model.")
    return key.removesuffix(".weight") if "codebook" in key else key
