"""The command line. Every command is a few lines over the library; errors are one sentence and exit code 2."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.markup import escape

from firesteel.bench.commands import app as bench
from firesteel.default_target import DEFAULT_TARGET
from firesteel.errors import FiresteelError
from firesteel.eval_command import evaluate
from firesteel.explain_command import explain
from firesteel.export_command import export
from firesteel.options import (
    AsJson,
    Compiled,
    Config,
    Device,
    DrafterName,
    Dtype,
    MaxTokens,
    PolicyName,
    Seed,
    Store,
    Target,
    Temperature,
    TraceFile,
    Width,
    err,
    load_model,
    opened,
    out,
    print_text,
)
from firesteel.pairs_command import pairs
from firesteel.store_command import app as store_app
from firesteel.train.commands import app as train
from firesteel.train.data_commands import app as data

app = typer.Typer(
    help="Speculative decoding with token trees: the same text, fewer passes of the model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(bench, name="bench")
app.add_typer(data, name="data")
app.add_typer(store_app, name="store")
app.add_typer(train, name="train")
app.command("eval")(evaluate)
app.command()(explain)
app.command()(export)
app.command()(pairs)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    target: Target = DEFAULT_TARGET,
    dtype: Dtype = "fp32",
    compiled: Compiled = None,
    policy: PolicyName = "auto",
    width: Width = None,
    drafter: DrafterName = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens up to this mass.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep this many of the likeliest tokens; 0 keeps all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Keep tokens at least this likely, relative to the best.")] = 0.0,
    presence_penalty: Annotated[float, typer.Option(help="Lowers tokens that the reply has.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="Lowers tokens by how often the reply has them.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Lowers tokens that prompt or reply have.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the reply; may be repeated.")] = None,
    min_tokens: Annotated[int, typer.Option(help="No end before this many tokens.")] = 0,
    ignore_eos: Annotated[bool, typer.Option(help="Go on after the end-of-text token.")] = False,
    seed: Seed = None,
    chat: Annotated[bool | None, typer.Option("--chat/--raw", help="Through the chat template, or as it is.")] = None,
    compare: Annotated[bool, typer.Option(help="Decode plainly too, side by side.")] = False,
    trace: TraceFile = None,
    store: Store = True,
    device: Device = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Decode one reply and stream it."""
    # Wrong values fail here, before anything heavy is imported or loaded.
    from firesteel.policy import make
    from firesteel.sampling import SamplingParams, fresh_seed

    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=fresh_seed() if seed is None else seed,  # both texts of a comparison draw the same
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        stop=tuple(stop or ()),
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
    )
    make(policy, width=width)
    traced = opened(trace)

    from firesteel.demo import compare as compare_both
    from firesteel.demo import speed
    from firesteel.display import summary_line
    from firesteel.engine.record import Trace
    from firesteel.model import report

    model = load_model(target, dtype, device, compiled, drafter, store)
    text = sys.stdin.read() if prompt == "-" else prompt
    chat = model.has_chat_template if chat is None else chat
    ids = model.encode_chat([{"role": "user", "content": text}]) if chat else model.encode(text)

    with model, traced as lines:
        engine = model.engine(policy, width=width)
        if lines:
            engine.record = Trace(lines, engine.policy)
        if compare:
            both = compare_both(model, ids, params, engine, None if as_json else out)
            request = both.speculative
        else:
            request = model.complete(ids, params, engine, (lambda new: None) if as_json else print_text)

    if as_json:
        result = report(request, engine)
        result["timing"] = {"load_s": model.load_s, **result["timing"]}
        if compare:
            result["plain"] = {"token_ids": both.plain.output, "decode_tokens_per_s": speed(both.plain)}
            result["identical"], result["ratio"] = both.identical, both.ratio
        print_text(json.dumps(result) + "\n")
    elif not compare:
        print_text("\n")
        err.print(f"[dim]{summary_line(request, policy, engine.drafter.name)}[/dim]")


@app.command()
def demo(
    target: Target = DEFAULT_TARGET, dtype: Dtype = "fp32", compiled: Compiled = True, max_tokens: MaxTokens = 96
) -> None:
    """Two prompts, each decoded plainly and speculatively side by side: one that repeats itself, and prose."""
    from firesteel.demo import PROMPTS, compare
    from firesteel.sampling import SamplingParams

    model = load_model(target, dtype, None, compiled)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    for prompt in PROMPTS:
        out.print(f"\n[bold]{prompt.title}[/bold]")
        ids = (
            model.encode_chat([{"role": "user", "content": prompt.text}]) if prompt.chat else model.encode(prompt.text)
        )
        compare(model, ids, params, model.engine(), out)


@app.command()
def chat(
    target: Target = DEFAULT_TARGET,
    dtype: Dtype = "fp32",
    compiled: Compiled = None,
    policy: PolicyName = "auto",
    width: Width = None,
    drafter: DrafterName = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    trace: TraceFile = None,
    store: Store = True,
    device: Device = None,
) -> None:
    """Talk to the target; an empty line or Ctrl-D ends."""
    from firesteel.display import summary_line
    from firesteel.engine.record import Trace
    from firesteel.sampling import SamplingParams

    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    with opened(trace) as lines, load_model(target, dtype, device, compiled, drafter, store) as model:
        engine = model.engine(policy, width=width)
        if lines:
            engine.record = Trace(lines, engine.policy)
        messages: list[dict[str, str]] = []
        while turn := _turn():
            messages.append({"role": "user", "content": turn})
            request = model.complete(model.encode_chat(messages), params, engine, print_text)
            messages.append({"role": "assistant", "content": request.text.text})
            print_text("\n")
            err.print(f"[dim]{summary_line(request, policy, engine.drafter.name)}[/dim]")


def _turn() -> str:
    """What the user says next; "" is the end."""
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        return ""


@app.command()
def specdiff(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts; none takes held-out ones.")] = None,
    target: Target = DEFAULT_TARGET,
    dtype: Dtype = "fp32",
    compiled: Compiled = None,
    policy: PolicyName = "tree",
    width: Width = None,
    drafter: DrafterName = None,
    max_tokens: MaxTokens = 64,
    limit: Annotated[int, typer.Option(help="How many held-out prompts.")] = 10,
    raw: Annotated[bool, typer.Option("--raw", help="Prompts as they are, not through the chat template.")] = False,
    device: Device = None,
) -> None:
    """Compare plain and speculative greedy decoding token for token; exit code 1 when a text differs."""
    from firesteel.bench.prompts import held_out
    from firesteel.bench.specdiff import compare

    model = load_model(target, dtype, device, compiled, drafter)
    texts = prompts or [conversation.turns[0] for conversation in held_out(limit=limit)]
    differing = 0
    for number, text in enumerate(texts):
        ids = model.encode(text) if raw else model.encode_chat([{"role": "user", "content": text}])
        plain, difference = compare(model, ids, policy, width, max_tokens)
        if difference is None:
            out.print(f"prompt {number}: identical, {len(plain)} tokens")
            continue
        differing += 1
        names = [
            "the end" if token is None else f"{token} {model.loaded.tokenizer.decode([token])!r}"
            for token in (difference.plain, difference.speculative)
        ]
        out.print(
            f"prompt {number}: differs at token {difference.position}: plain {names[0]}, speculative {names[1]}; "
            f"plain's two best logits there are {difference.gap:.3g} apart"
        )
    out.print(f"{len(texts) - differing} of {len(texts)} identical")
    if differing:
        raise typer.Exit(1)


@app.command()
def doctor(target: Target = DEFAULT_TARGET, as_json: AsJson = False) -> None:
    """Say what this machine can do with a target, and what would be slow."""
    from firesteel.doctor import examine

    model = load_model(target, "fp32", "cpu", compiled=False, drafter="ngram")
    weights = sum(parameter.numel() for parameter in model.loaded.model.parameters())
    facts = examine(model.target, weights)
    if as_json:
        print_text(json.dumps(facts) + "\n")
        return
    for name, value in facts["machine"].items():
        out.print(f"{name:20} {', '.join(value) if isinstance(value, list) else value}")
    out.print(f"{'memory reads':20} {facts['read_bandwidth_gb_per_s']:.1f} GB/s")
    for dtype, ceiling in facts["ceiling_tokens_per_s"].items():
        out.print(
            f"{'ceiling ' + dtype:20} {ceiling:.0f} tokens/s plain: every token reads every weight", soft_wrap=True
        )
    for line in facts["advice"]:
        out.print(f"slow here: {line}", soft_wrap=True)


def main() -> None:
    """Entry point: a `FiresteelError` is one line on standard error and exit code 2."""
    try:
        app()
    except FiresteelError as error:
        err.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
