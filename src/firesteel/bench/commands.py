"""`firesteel bench ...`: measure forwards by width, policies against each other, and the time they take to decide."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

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
    Temperature,
    Width,
    err,
    load_model,
    print_text,
)

app = typer.Typer(help="Measure: forwards by width, and policies against each other.", no_args_is_help=True)

LlamaCpp = Annotated[
    bool | None,
    typer.Option("--llama-cpp/--no-llama-cpp", help="Measure llama.cpp too; by default where it is built."),
]


@app.command("decode")
def decode(
    policies: Annotated[
        str, typer.Option(help="Arms, as off,chain:4,auto@ngram; ratios are to the first.")
    ] = "off,auto",
    prompts: Annotated[Path | None, typer.Option(help="A folder of *.jsonl prompts; none takes the shipped.")] = None,
    limit: Annotated[int, typer.Option(help="Conversations.")] = 20,
    target: Target = DEFAULT_TARGET,
    dtype: Dtype = "fp32",
    compiled: Compiled = None,
    drafter: DrafterName = None,
    width: Width = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    store: Annotated[
        Path | None,
        typer.Option(help="A folder where policies go on from and keep what they learn; by default they start empty."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="A folder for decode-DTYPE.json and .md.")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Decode held-out prompts under several policies, interleaved, and print their ratios."""
    from firesteel.bench.decode import parse_arms, run, summary
    from firesteel.bench.prompts import held_out
    from firesteel.bench.report import decode_tables, write
    from firesteel.sampling import SamplingParams

    conversations = held_out(prompts, limit)
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    model = load_model(target, dtype, device, compiled, drafter, store or False)
    arms = parse_arms(model, policies, width)
    with model, Progress(console=err) as progress:
        task = progress.add_task("decoding", total=len(conversations))
        run(model, arms, conversations, params, lambda _: progress.advance(task))
    settings = {
        "limit": limit,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "prompts": str(prompts or "shipped, held-out lines"),
    }
    result = {"command": command_line(), **summary(model, arms, settings)}
    if output is not None:
        name = f"decode-{dtype}" + (f"-t{temperature:g}" if temperature else "")
        write(result, output, name, f"Decode speed by policy, {dtype}, T = {temperature:g}", decode_tables(result))
    print_text(json.dumps(result) + "\n" if as_json else decode_tables(result) + "\n")


@app.command("adaspark")
def adaspark(
    dtypes: Annotated[str, typer.Option(help="Which of fp32, bf16 and int8.")] = "bf16,int8",
    prompts: Annotated[Path | None, typer.Option(help="A folder of *.jsonl prompts; none takes the shipped.")] = None,
    limit: Annotated[int, typer.Option(help="Conversations.")] = 20,
    target: Target = DEFAULT_TARGET,
    drafter: DrafterName = None,
    max_tokens: MaxTokens = 128,
    output: Annotated[Path | None, typer.Option(help="A folder for adaspark.json and .md.")] = None,
    as_json: AsJson = False,
) -> None:
    """AdaSpark against itself: its width pinned, and its parts added one by one, from an empty store."""
    from firesteel.bench.ablation import measure, tables
    from firesteel.bench.prompts import held_out
    from firesteel.bench.report import decode_tables, write
    from firesteel.sampling import SamplingParams

    conversations = held_out(prompts, limit)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    parts, results = [], {}
    with Progress(console=err) as progress:
        for dtype in dtypes.split(","):
            task = progress.add_task(dtype, total=len(conversations))
            with load_model(target, dtype, None, True, drafter, False) as model:
                result = measure(model, conversations, params, lambda _, task=task: progress.advance(task))
            results[dtype] = result
            parts += [f"## {dtype}\n", tables(result), "", decode_tables(result), ""]
    whole = {"command": command_line(), "machine": next(iter(results.values()))["machine"], "dtypes": results}
    if output is not None:
        write(whole, output, "adaspark", "AdaSpark against itself", *parts)
    print_text(json.dumps(whole) + "\n" if as_json else "\n".join(parts) + "\n")


@app.command("width")
def width(
    target: Target = DEFAULT_TARGET,
    dtypes: Annotated[str, typer.Option(help="Which of fp32, bf16 and int8.")] = "fp32,bf16,int8",
    modes: Annotated[str, typer.Option(help="Which of compiled and eager.")] = "compiled,eager",
    rows: Annotated[str, typer.Option(help="Rows of a forward.")] = "1,2,3,4,6,8,12,16,24,32,48,64",
    contexts: Annotated[str, typer.Option(help="Tokens in the cache.")] = "128,512,2048",
    repeats: Annotated[int, typer.Option(help="Forwards per cell; the median counts.")] = 7,
    llama_cpp: LlamaCpp = None,
    output: Annotated[
        Path | None, typer.Option(help="A folder for width.json, .md and .svg; by default firesteel's cache folder.")
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Milliseconds of one forward by rows and context, all rows scored, beside llama.cpp's."""
    from firesteel.bench.machine import machine
    from firesteel.bench.report import width_tables, write_width
    from firesteel.bench.width import measure
    from firesteel.paths import cache_folder

    counts = [_numbers(rows, "rows"), _numbers(contexts, "contexts")]
    chosen = [(mode, dtype) for dtype in dtypes.split(",") for mode in modes.split(",")]
    with Progress(console=err) as progress:
        task = progress.add_task("forwards", total=None)
        records = measure(target, chosen, *counts, repeats, llama_cpp, device, lambda: progress.advance(task))
    result = {"machine": machine(), "command": command_line(), "records": records}
    output = output or cache_folder("results")
    write_width(result, output)
    err.print(f"written to {output}")
    print_text(json.dumps(result) + "\n" if as_json else width_tables(records) + "\n")


@app.command("quality")
def quality(
    target: Target = DEFAULT_TARGET,
    dtypes: Annotated[str, typer.Option(help="Which of fp32, bf16 and int8.")] = "fp32,bf16,int8",
    windows: Annotated[int, typer.Option(help="Windows of 512 tokens.")] = 16,
    llama_cpp: LlamaCpp = None,
    output: Annotated[Path | None, typer.Option(help="A folder for quality.json and quality.md.")] = None,
    as_json: AsJson = False,
) -> None:
    """How far each dtype's probabilities are from fp32's, on held-out text, beside llama.cpp's Q8_0."""
    from firesteel.bench.machine import machine
    from firesteel.bench.quality import measure
    from firesteel.bench.report import quality_table, write

    names = dtypes.split(",")
    with Progress(console=err) as progress:
        task = progress.add_task("windows", total=windows * len(names))
        records = measure(target, names, windows, llama_cpp, lambda: progress.advance(task))
    result = {"machine": machine(), "command": command_line(), "records": records}
    if output is not None:
        write(result, output, "quality", "Probabilities by dtype", quality_table(records))
    print_text(json.dumps(result) + "\n" if as_json else quality_table(records) + "\n")


@app.command("policy")
def policy(
    name: Annotated[str, typer.Option("--policy", help="Which policy.")] = "adaspark",
    rounds: Annotated[int, typer.Option(help="Rounds per case; the median counts.")] = 400,
    output: Annotated[Path | None, typer.Option(help="A folder for policy.json and policy.md.")] = None,
    as_json: AsJson = False,
) -> None:
    """Host milliseconds of a round's decisions: pricing, choosing and learning, without a model."""
    from firesteel.bench.machine import machine
    from firesteel.bench.policy import CASES, measure
    from firesteel.bench.report import policy_table, write

    with Progress(console=err) as progress:
        task = progress.add_task("cases", total=len(CASES))
        records = measure(name, rounds, lambda: progress.advance(task))
    result = {"machine": machine(), "command": command_line(), "records": records}
    if output is not None:
        write(result, output, "policy", f"Host time of deciding, {name}", policy_table(records))
    print_text(json.dumps(result) + "\n" if as_json else policy_table(records) + "\n")


@app.command("peers")
def peers(
    precisions: Annotated[str, typer.Option(help="Which of bf16, int8 and fp32.")] = "bf16,int8",
    arms: Annotated[
        str, typer.Option(help="Engines and policies; a later turn follows the reply of the first.")
    ] = "llama,llama-dspark,transformers,transformers-lookup,off,chain:4,adaspark",
    prompts: Annotated[Path | None, typer.Option(help="A folder of *.jsonl prompts; none takes the shipped.")] = None,
    limit: Annotated[int, typer.Option(help="Conversations.")] = 20,
    target: Target = DEFAULT_TARGET,
    drafter: DrafterName = None,
    max_tokens: MaxTokens = 128,
    threads: Annotated[int, typer.Option(help="Of every arm.")] = 2,
    server_options: Annotated[str, typer.Option(help="More words for llama-server's command line.")] = "",
    output: Annotated[Path | None, typer.Option(help="A folder for peers.json and peers.md.")] = None,
    as_json: AsJson = False,
) -> None:
    """Decode held-out prompts with llama.cpp, transformers and firesteel in turn, and print their ratios."""
    from firesteel.bench.contenders import check_arms

    names, dtypes = [[part.strip() for part in text.split(",")] for text in (arms, precisions)]
    check_arms(names)
    _check_peers(names, dtypes, threads)

    import torch

    from firesteel.bench import contest
    from firesteel.bench.contenders import contenders
    from firesteel.bench.contest_report import METHOD, peers_tables, settings_lines
    from firesteel.bench.machine import machine
    from firesteel.bench.peers import version
    from firesteel.bench.prompts import held_out
    from firesteel.bench.report import write

    torch.set_num_threads(threads)
    conversations = held_out(prompts, limit)
    replies = sum(len(conversation.turns) for conversation in conversations)
    found: list[dict[str, Any]] = []
    with Progress(console=err) as progress:
        for dtype in dtypes:
            # The kernels are waited for: what runs beside them while they are built is nobody's measure.
            model, words = load_model(target, dtype, "cpu", True, drafter), server_options.split()
            with model, contenders(names, model, threads=threads, server_options=words) as ready:
                advance = partial(progress.advance, progress.add_task(dtype, total=replies * len(ready)))
                scores = contest.run(model, ready, conversations, max_tokens, advance)
            found.append({"dtype": dtype, **contest.summary(scores)})
    settings = {
        "target": target,
        "drafter": drafter or "the target's own",
        "conversations": len(conversations),
        "max_tokens": max_tokens,
        "prompts": str(prompts or "shipped, held-out lines"),
        "threads_of_every_arm": threads,
        "llama_cpp": version() if any(name.startswith("llama") for name in names) else "not run",
        "llama_server_options": server_options or "none",
    }
    result = {"machine": machine(), "command": command_line(), "settings": settings, "precisions": found}
    if output is not None:
        body = [METHOD, settings_lines(settings), "", peers_tables(result)]
        write(result, output, "peers", "Beside llama.cpp and transformers", *body)
    print_text(json.dumps(result) + "\n" if as_json else peers_tables(result) + "\n")


def _check_peers(names: list[str], dtypes: list[str], threads: int) -> None:
    """Wrong values and missing programs fail before anything is loaded."""
    from firesteel.bench.peers import OUTTYPES, converter, program
    from firesteel.errors import InvalidParameter, unknown

    for dtype in dtypes:
        if dtype not in OUTTYPES:
            raise unknown("precision", dtype, OUTTYPES)
    if threads < 1:
        raise InvalidParameter(f"threads must be at least 1, got {threads}")
    if any(name.startswith("llama") for name in names):
        program("llama-server")
        converter()


def command_line() -> str:
    """How this process was called, for result files."""
    return " ".join(["firesteel", *sys.argv[1:]])


def temperatures_of(text: str) -> tuple[float, ...]:
    """Temperatures with commas between. Raises InvalidParameter."""
    from firesteel.errors import InvalidParameter
    from firesteel.sampling import SamplingParams

    try:
        return tuple(SamplingParams(temperature=float(part)).temperature for part in text.split(","))
    except ValueError as error:
        raise InvalidParameter(f"temperatures must be numbers >= 0 with commas between, got {text!r}") from error


def _numbers(text: str, name: str) -> list[int]:
    from firesteel.errors import InvalidParameter

    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise InvalidParameter(f"{name} must be whole numbers above 0 with commas between, got {text!r}")
    return [int(part) for part in parts]
