"""What a loaded target and its drafter are, to a store of learned things."""

from __future__ import annotations

from pathlib import Path

import torch

import firesteel
from firesteel import processor
from firesteel.models.drafters.checkpoint import LoadedDrafter
from firesteel.models.loading import LoadedTarget
from firesteel.models.package import key as kernels
from firesteel.store.owner import Owner, fingerprint


def owner(loaded: LoadedTarget, dtype: str, *, compiled: bool, drafter: LoadedDrafter | None) -> Owner:
    """The owner of what a policy learns over this target.

    Args:
        compiled: whether the target runs on its kernels, which are then built.
        drafter: None where drafts come from each request's own text.
    """
    forward = f"kernels {kernels()}" if compiled else f"torch {torch.__version__}"
    device = loaded.device
    return Owner(
        target=_name(loaded.name),
        target_weights=fingerprint(_folder(loaded.folder)),
        drafter="ngram" if drafter is None else _name(drafter.name),
        drafter_weights="" if drafter is None else fingerprint(drafter.folder),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        processor=f"{processor.name()} ({torch.backends.cpu.get_cpu_capability()})",
        threads=torch.get_num_threads(),
        dtype=dtype,
        mode="compiled" if compiled else "eager",
        engine=f"firesteel {firesteel.__version__}, {forward}",
    )


def _name(name: str) -> str:
    """A hub id as it is; of a path the last part, which is the same wherever the command runs."""
    path = Path(name).expanduser()
    return path.resolve().name if path.exists() else name


def _folder(folder: str) -> Path:
    """Where the files are: the folder itself, or a hub id's in the hub's cache, which it was loaded from."""
    if Path(folder).is_dir():
        return Path(folder)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(folder, "config.json")
    return Path(found).parent if isinstance(found, str) else Path(folder)
