"""`firesteel train ...`: train a drafter for a target."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from firesteel.default_target import DEFAULT_TARGET
from firesteel.errors import InvalidParameter, unknown
from firesteel.options import Compiled, Device, Target, err

if TYPE_CHECKING:
    from firesteel.train.course import Course

app = typer.Typer(help="Train drafters.", no_args_is_help=True)

KINDS = ("dspark", "dflash", "dflash2")


@app.callback()
def _group() -> None:
    """Train drafters."""


@app.command("drafter")
def drafter(
    data: Annotated[list[Path], typer.Option(help="A folder of conversations (firesteel data); may be repeated.")],
    output: Annotated[Path, typer.Option(help="Where the run is kept; an interrupted one goes on from there.")],
    target: Target = DEFAULT_TARGET,
    kind: Annotated[str, typer.Option(help="dspark, dflash or dflash2.")] = "dspark",
    layers: Annotated[int, typer.Option(min=1, help="Of the backbone.")] = 3,
    block: Annotated[int, typer.Option(min=2, help="Rows of a block, the anchor's included.")] = 5,
    causal: Annotated[bool, typer.Option("--causal", help="Rows of a block see only those before them.")] = False,
    taps: Annotated[str | None, typer.Option(help="Target layers to look at, as 1,8,14; by default five.")] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="Tokens of a reduced draft vocabulary.")] = None,
    markov_rank: Annotated[int, typer.Option(min=1, help="Of DSpark's Markov head.")] = 64,
    mask_token: Annotated[int | None, typer.Option(help="Token that stands for a mask; by default one unused.")] = None,
    start: Annotated[str, typer.Option(help="First weights: target (its last layers) or random.")] = "target",
    limit: Annotated[int | None, typer.Option(min=1, help="Conversations to use, spread over the data.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of the whole run; the learning rate falls over them.")] = 2000,
    seconds: Annotated[float | None, typer.Option(help="Stop after this time; start again to go on.")] = None,
    conversations: Annotated[int, typer.Option(min=1, help="Per step.")] = 1,
    anchors: Annotated[int, typer.Option(min=1, help="Blocks per conversation.")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Highest, after the warm-up.")] = 1e-3,
    warmup: Annotated[int, typer.Option(min=0, help="Steps.")] = 100,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the order and the anchors.")] = 0,
    teacher_dtype: Annotated[str, typer.Option(help="fp32, bf16 or int8: of the target that teaches.")] = "bf16",
    every: Annotated[int, typer.Option(min=1, help="Steps between validations and saves.")] = 100,
    compiled: Compiled = None,
    device: Device = None,
) -> None:
    """Train a block drafter on a target's own conversations; start it again to go on where it stopped."""
    if kind not in KINDS:
        raise unknown("kind of drafter", kind, KINDS)
    if start not in ("target", "random"):
        raise unknown("start", start, ("target", "random"))
    from firesteel.train.course import Course, read_data
    from firesteel.train.lessons import Teacher
    from firesteel.train.start import Design, spread_taps
    from firesteel.train.trainer import TrainConfig

    chosen = None if taps is None else _layers(taps)
    lines = read_data(data, limit)  # damaged data fails here, before anything heavy
    config = TrainConfig(
        steps=steps,
        conversations=conversations,
        anchors=anchors,
        learning_rate=learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        seed=seed,
    )
    if chosen is None:
        from firesteel.models.loading import load

        chosen = spread_taps(load(target).config.get_text_config(decoder=True).num_hidden_layers)
    from firesteel.model import Model

    model = Model.load(
        target, dtype=teacher_dtype, device=device, compiled=compiled, drafter="ngram", taps=chosen, say=err.print
    )
    design = Design(
        kind=kind,  # type: ignore[arg-type]
        layers=layers,
        block=block,
        causal=causal,
        taps=chosen,
        vocab=vocab,
        markov_rank=markov_rank,
        mask_token_id=mask_token,
        from_target=start == "target",
    )
    teacher = Teacher(model.target, f"{model.loaded.name}|{teacher_dtype}")
    course = Course(model, teacher, lines, design, config, output)
    for line in course.notes:
        err.print(line, highlight=False)
    _run(course, steps, seconds, every)
    err.print(course.finish(), highlight=False)


def _run(course: Course, steps: int, seconds: float | None, every: int) -> None:
    """The steps, under a progress bar; Ctrl-C saves and stops."""
    trainer = course.trainer
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    end = float("inf") if seconds is None else time.monotonic() + seconds
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task("training", total=steps, completed=trainer.step)
        try:
            while trainer.step < steps and time.monotonic() < end:
                line = course.step(every)
                progress.update(task, completed=trainer.step, description=line)
                if not progress.console.is_terminal and trainer.step % 20 == 0:
                    err.print(f"{trainer.step}/{steps} {line}", highlight=False)
        except KeyboardInterrupt:
            err.print("interrupted: start the command again to go on")
        course.keep()


def _layers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise InvalidParameter(f"taps must be layer numbers with commas between, got {text!r}")
    return tuple(int(part) for part in parts)
