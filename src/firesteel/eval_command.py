"""`firesteel eval`: how far a drafter gets with its target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from firesteel.default_target import DEFAULT_TARGET
from firesteel.options import (
    AsJson,
    Compiled,
    Device,
    DrafterName,
    Dtype,
    MaxTokens,
    Target,
    err,
    load_model,
    print_text,
)


def evaluate(
    drafter: DrafterName = None,
    prompts: Annotated[Path | None, typer.Option(help="A folder of *.jsonl prompts; none takes the shipped.")] = None,
    target: Target = DEFAULT_TARGET,
    dtype: Dtype = "int8",
    compiled: Compiled = None,
    temperatures: Annotated[str, typer.Option(help="One evaluation for each.")] = "0,0.5,1",
    drafts: Annotated[int | None, typer.Option(min=1, help="Of a chain; by default a full block.")] = None,
    limit: Annotated[int, typer.Option(help="Conversations, taken from the sources in turn.")] = 50,
    max_tokens: MaxTokens = 128,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    output: Annotated[Path | None, typer.Option(help="A folder for drafter.json and drafter.md.")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """How far a drafter's chains get on held-out lines: tokens per round, acceptance by position, its confidence."""
    from firesteel.bench.commands import command_line, temperatures_of
    from firesteel.bench.evaluate import evaluate as run
    from firesteel.bench.machine import machine
    from firesteel.bench.prompts import held_out
    from firesteel.bench.report import eval_tables, write
    from firesteel.models.drafters.pairs import SHIPPED

    heats = temperatures_of(temperatures)
    conversations = held_out(prompts, limit)
    model = load_model(target, dtype, device, compiled, drafter)
    runs = []
    with Progress(console=err) as progress:
        task = progress.add_task("decoding", total=len(conversations) * len(heats))
        for heat in heats:
            runs.append(
                run(
                    model,
                    conversations,
                    temperature=heat,
                    seed=seed,
                    max_tokens=max_tokens,
                    drafts=drafts,
                    on_reply=lambda: progress.advance(task),
                )
            )
    assert model.drafter is not None, "evaluate refuses a target without one"
    first = runs[0]
    result = {
        "command": command_line(),
        "machine": machine(),
        "drafter": model.drafter.name.removeprefix(f"{SHIPPED.parent}/"),  # not where it was installed
        "settings": {
            "target": model.loaded.name,
            "dtype": dtype,
            "mode": model.modes.name,
            "chat_template": True,
            "limit": limit,
            "max_tokens": max_tokens,
            "seed": seed,
            "prompts": str(prompts or "shipped, held-out lines"),
        },
        "tokens_per_round": first["tokens_per_round"],
        "sources": first["sources"],
        "temperatures": runs,
    }
    if output is not None:
        write(result, output, "drafter", f"The drafter of {model.loaded.name}", eval_tables(result))
    print_text(json.dumps(result) + "\n" if as_json else eval_tables(result) + "\n")
