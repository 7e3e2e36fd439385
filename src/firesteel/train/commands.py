"""`firesteel train ...`: train a drafter for a target."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from firesteel.default_target import DEFAULT_TARGET
from firesteel.errors import InvalidParameter, unknown
from firesteel.options import Compiled, Device, Target, err

if TYPE_CHECKING:
    from firesteel.models.loading import LoadedTarget
    from firesteel.train.course import Course

app = typer.Typer(help="Train drafters.", no_args_is_help=True)

KINDS = ("dspark", "dflash", "dflash2")
STARTS = ("target", "random")


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
    start: Annotated[
        str, typer.Option(help="First weights: target (its last layers), random, or a drafter's folder.")
    ] = "target",
    limit: Annotated[int | None, typer.Option(min=1, help="Conversations to use, spread over the data.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of the whole run; the learning rate falls over them.")] = 2000,
    seconds: Annotated[float | None, typer.Option(help="Stop after this time; start again to go on.")] = None,
    conversations: Annotated[int, typer.Option(min=1, help="Per step.")] = 1,
    anchors: Annotated[int, typer.Option(min=1, help="Blocks per conversation.")] = 128,
    learning_rate: Annotated[float, typer.Option(min=0, help="Highest, after the warm-up.")] = 1e-3,
    warmup: Annotated[int, typer.Option(min=0, help="Steps.")] = 100,
    weight_decay: Annotated[float, typer.Option(min=0, help="Of AdamW.")] = 0.0,
    teacher_weight: Annotated[float, typer.Option(min=0, help="Of the divergence from the target's p.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the order and the anchors.")] = 0,
    teacher_dtype: Annotated[str, typer.Option(help="fp32, bf16 or int8: of the target that teaches.")] = "bf16",
    every: Annotated[int, typer.Option(min=1, help="Steps between validations and saves.")] = 100,
    compiled: Compiled = None,
    device: Device = None,
) -> None:
    """Train a block drafter on a target's own conversations; start it again to go on where it stopped."""
    if kind not in KINDS:
        raise unknown("kind of drafter", kind, KINDS)
    if start not in STARTS and not Path(start).is_dir():
        raise unknown("start", start, (*STARTS, "a drafter's folder"))
    chosen = None if taps is None else _layers(taps)

    from firesteel.models.drafters.checkpoint import load_drafter
    from firesteel.models.loading import load
    from firesteel.train.course import Course, own_device, read_data
    from firesteel.train.lessons import Teacher
    from firesteel.train.losses import LossConfig
    from firesteel.train.start import Design, configure, spread_taps
    from firesteel.train.trainer import TrainConfig

    # A design that does not fit the target, and damaged data, fail here, before anything heavy is loaded.
    loaded = load(target)
    text = loaded.config.get_text_config(decoder=True)
    design = Design(
        kind=kind,  # type: ignore[arg-type]
        layers=layers,
        block=block,
        causal=causal,
        taps=chosen or spread_taps(text.num_hidden_layers),
        vocab=vocab,
        markov_rank=markov_rank,
        mask_token_id=mask_token,
        from_target=start == "target",
    )
    source = None
    if start in STARTS:
        configure(replace(design, mask_token_id=mask_token or 0), loaded.config, loaded.name)
    else:
        source = load_drafter(start, target_config=loaded.config).model
        design = replace(design, kind=source.config.kind, taps=source.config.target_layers)
    lines = read_data(data, limit, text.vocab_size)
    config = TrainConfig(
        steps=steps,
        conversations=conversations,
        anchors=anchors,
        learning_rate=learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        loss=LossConfig(teacher=teacher_weight),
        seed=seed,
    )
    from firesteel.model import Model

    model = Model.load(
        target,
        dtype=teacher_dtype,
        device=device or own_device(),
        compiled=compiled,
        drafter="ngram",
        taps=design.taps or (),
        say=err.print,
    )
    teacher = Teacher(model.target, f"{_weights(model.loaded)}|{teacher_dtype}")
    course = Course(model, teacher, lines, design, config, output, source)
    for line in course.notes if course.speaks else ():
        err.print(line, highlight=False)
    _run(course, steps, seconds, every)
    if course.speaks:
        err.print(course.finish(), highlight=False)


def _run(course: Course, steps: int, seconds: float | None, every: int) -> None:
    """The steps, under a progress bar; Ctrl-C saves and stops."""
    trainer = course.trainer
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    end = float("inf") if seconds is None else time.monotonic() + seconds
    with Progress(*columns, *times, console=err, disable=not course.speaks) as progress:
        task = progress.add_task("training", total=steps, completed=trainer.step)
        try:
            while trainer.step < steps and not course.agreed(time.monotonic() >= end):
                line = course.step(every)
                progress.update(task, completed=trainer.step, description=line)
                if course.speaks and not progress.console.is_terminal and trainer.step % 20 == 0:
                    err.print(f"{trainer.step}/{steps} {line}", highlight=False)
        except KeyboardInterrupt:
            err.print("interrupted: start the command again to go on")
        course.keep()


def _weights(loaded: LoadedTarget) -> str:
    """What identifies a target's weights: the name of a published one, the files of one that lies on this disk."""
    if not Path(loaded.name).expanduser().exists():
        return loaded.name
    files = sorted(Path(loaded.folder).glob("*.safetensors"))
    return repr([(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files])


def _layers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise InvalidParameter(f"taps must be layer numbers with commas between, got {text!r}")
    return tuple(int(part) for part in parts)
