"""`firesteel export`: a drafter as a checkpoint for another engine."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firesteel.bench import peers
from firesteel.default_target import DEFAULT_TARGET
from firesteel.errors import InvalidParameter, unknown
from firesteel.options import Target, err, out
from firesteel.paths import made_whole

if TYPE_CHECKING:
    from firesteel.models.drafters.config import DrafterConfig


FORMATS = ("deepspec", "speculators", "gguf")


def export(
    drafter: Annotated[str, typer.Argument(help="A folder or hub id.")],
    output: Annotated[Path, typer.Option(help="The folder to write; it must not exist yet.")],
    format: Annotated[str, typer.Option(help="deepspec, speculators or gguf.")] = "deepspec",
    target: Target = DEFAULT_TARGET,
    dtype: Annotated[str, typer.Option(help="Of a gguf: fp32, bf16 or int8. The others are bf16.")] = "bf16",
) -> None:
    """Write a drafter as another engine reads it, with what that engine needs of the target."""
    # Wrong values and missing tools fail here, before anything heavy is imported or loaded.
    if format not in FORMATS:
        raise unknown("export format", format, FORMATS)
    if dtype not in peers.OUTTYPES:
        raise unknown("dtype", dtype, peers.OUTTYPES)
    if output.exists():
        raise InvalidParameter(f"{output} exists already: a drafter is never written over another")
    if format == "gguf":
        peers.converter()

    from firesteel.models.drafters.export import caveats

    config = write(drafter, output, format, target, dtype)
    for caveat in caveats(config, format):
        err.print(f"beware: {caveat}", highlight=False, soft_wrap=True)
    out.print(f"{output}: {how_to_serve(config, format, output, dtype)}", soft_wrap=True, highlight=False, markup=False)


def write(drafter: str, output: Path, format: str, target: str, dtype: str) -> DrafterConfig:
    """Write it, whole or not at all; returns its configuration as it was written."""
    import torch

    from firesteel.models.drafters.checkpoint import load_drafter
    from firesteel.models.drafters.export import export_drafter
    from firesteel.models.loading import load
    from firesteel.models.weights import embedding_and_head

    precise = torch.float32 if format == "gguf" else torch.bfloat16  # llama.cpp's converter does its own rounding
    loaded = load(target, precise)
    own = load_drafter(drafter, dtype=precise, target_config=loaded.config)
    for note in own.notes:
        err.print(note)
    own.model.lend(*embedding_and_head(loaded))
    settings: dict[str, Any] = {"target": target, "target_config": loaded.config}
    if format != "gguf":
        return export_drafter(own.model, output, format, **settings)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, made_whole(output) as made:
        folder = Path(scratch) / "drafter"
        config = export_drafter(own.model, folder, format, **settings)
        peers.convert(folder, dtype, made / gguf_name(dtype), target_folder=_tokenizer_folder(loaded.folder))
    return config


def gguf_name(dtype: str) -> str:
    """What the file in a gguf's folder is called."""
    return f"drafter.{peers.OUTTYPES[dtype]}.gguf"


def how_to_serve(config: DrafterConfig, format: str, folder: Path, dtype: str) -> str:
    """The option with which the format's engine runs the drafter; the method is said, so that none is guessed."""
    if format == "gguf":
        kind = "draft-dspark" if config.kind == "dspark" else "draft-dflash"
        file = folder / gguf_name(dtype)
        return f"llama-server --spec-type {kind} -md {file} --spec-draft-n-max {config.drafts} -m TARGET.gguf"
    method = "dspark" if config.kind == "dspark" else "dflash"
    said = {"method": method, "model": str(folder), "num_speculative_tokens": config.drafts}
    return f"vllm serve {config.target} --speculative-config '{json.dumps(said)}'"


def _tokenizer_folder(target: str) -> Path:
    """The folder of a target's configuration and tokenizer, fetched when `target` is a hub id."""
    if Path(target).is_dir():
        return Path(target)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(target, allow_patterns=["*.json", "*.model", "*.txt", "*.jinja"]))
