"""What several commands share: their options, and how a model is loaded for them."""

from __future__ import annotations

import sys
import tomllib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console

from firesteel.errors import InvalidParameter, unknown

if TYPE_CHECKING:
    from firesteel.model import Model

out, err = Console(), Console(stderr=True)

Target = Annotated[str, typer.Option(help="A model folder, a .gguf file, a hub id, or the default's name.")]
Dtype = Annotated[str, typer.Option(help="fp32, bf16 or int8.")]
PolicyName = Annotated[str, typer.Option("--policy", help="auto, off, chain or tree.")]
DrafterName = Annotated[
    str | None,
    typer.Option("--drafter", help="A folder or hub id; ngram for the text alone. By default the target's own."),
]
Width = Annotated[int | None, typer.Option(help="Rows of a verify: exactly for chain and tree, at most for auto.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens of a reply.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampled text repeatable.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...; by default CUDA where there is one.")]
Store = Annotated[
    bool, typer.Option("--store/--no-store", help="Go on from what the policy learned before, and keep what it learns.")
]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Write one JSON line per round to this file, for `firesteel explain`.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Compiled = Annotated[
    bool | None,
    typer.Option(
        "--compiled/--eager",
        help="Kernels compiled for this processor, waited for; or none. By default they are used once they are built.",
    ),
]


def load_model(
    target: str,
    dtype: str,
    device: str | None,
    compiled: bool | None = None,
    drafter: str | None = None,
    store: bool | Path = False,
) -> Model:
    """Load a target and its drafter; torch is imported only by a command that needs it.

    Without a `store` the policies of a command start from nothing, so that what it prints does not depend on the past.
    """
    from firesteel.model import Model

    def say(line: str) -> None:
        err.print(line, markup=False, soft_wrap=True)

    return Model.load(target, dtype=dtype, device=device, compiled=compiled, drafter=drafter, store=store, say=say)


def opened(trace: Path | None) -> AbstractContextManager[TextIO | None]:
    """The file of a trace, emptied; nothing for None."""
    if trace is None:
        return nullcontext()
    try:
        return trace.open("w", encoding="utf-8")
    except OSError as error:
        raise InvalidParameter(f"cannot write the trace {trace}: {error.strerror}") from error


def print_text(text: str) -> None:
    """Write model text or JSON as it is: no markup, no wrapping."""
    sys.stdout.write(text)
    sys.stdout.flush()


def read_config(context: typer.Context, _: Any, file: Path | None) -> Path | None:
    """Options of a TOML file become the command's defaults; an unknown key is an error that names the nearest."""
    if file is None:
        return None
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidParameter(f"no such config file: {file}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidParameter(f"{file} is not TOML: {error}") from error
    known = {option.name for option in context.command.params if option.name} - {"config", "prompt"}
    values = {key.replace("-", "_"): value for key, value in values.items()}
    for key in values.keys() - known:
        raise unknown(f"key in {file}:", key, known)
    context.default_map = {**(context.default_map or {}), **values}
    return file


Config = Annotated[
    Path | None,
    typer.Option(callback=read_config, is_eager=True, help="A TOML file with options of this command."),
]
