"""`firesteel data ...`: make conversations to train on, and check them."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from firesteel.bench.commands import temperatures_of
from firesteel.default_target import DEFAULT_TARGET
from firesteel.errors import InvalidParameter
from firesteel.options import AsJson, Compiled, Device, Dtype, Target, err, load_model, out, print_text

if TYPE_CHECKING:
    from firesteel.train.chat import Chat

app = typer.Typer(help="Conversations to train drafters on: make them, check them.", no_args_is_help=True)

OPENINGS = Path(__file__).parents[1] / "data" / "openings.txt"


@app.command("selfplay")
def selfplay(
    folder: Annotated[Path, typer.Option("--out", help="The folder for shards; a run that was killed goes on there.")],
    target: Target = DEFAULT_TARGET,
    dtype: Dtype = "bf16",
    compiled: Compiled = None,
    seconds: Annotated[float | None, typer.Option(help="Begin no conversation after this time.")] = None,
    conversations: Annotated[int | None, typer.Option(help="How many, those that are there included.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Conversations at a time.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws; each seed has its own shards.")] = 0,
    reply_len: Annotated[int, typer.Option(help="Most tokens of a reply.")] = 448,
    temperatures: Annotated[str, typer.Option(help="Each reply draws its own from these.")] = "0,0,0.6,1",
    openings: Annotated[Path | None, typer.Option(help="A text file of beginnings of user turns.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A .jsonl file of user turns to answer instead.")] = None,
    drop_overlaps: Annotated[bool, typer.Option(help="Leave out lines that hold an evaluation prompt.")] = False,
    server: Annotated[str | None, typer.Option(help="The URL of a server that answers --prompts.")] = None,
    server_model: Annotated[str | None, typer.Option(help="The server's name for the target.")] = None,
    device: Device = None,
) -> None:
    """Let a target write conversations: user turns and replies, or replies to given turns."""
    if seconds is None and conversations is None and prompts is None:
        raise InvalidParameter("say how much: --conversations, --seconds or --prompts")
    if server and not (prompts and server_model):
        raise InvalidParameter("--server needs --prompts, for a server only replies, and --server-model")
    drawn = temperatures_of(temperatures)

    # Wrong files fail here, before anything heavy is imported or loaded.
    from firesteel.train.overlap import Overlap
    from firesteel.train.prompts import read_openings, read_prompts
    from firesteel.train.shards import Shards

    overlap, dropped = Overlap(), Counter[str]()
    turns = read_prompts(prompts, overlap, dropped if drop_overlaps else None) if prompts else None
    beginnings = read_openings(openings or OPENINGS)
    shards = Shards(folder, seed)
    missing, total = _missing(shards.done, turns, conversations)

    from firesteel.models.loading import load
    from firesteel.train.chat import Chat
    from firesteel.train.meter import Meter
    from firesteel.train.selfplay import SelfPlay
    from firesteel.train.server import ServerDecoder
    from firesteel.train.stream import EngineDecoder, together

    model = None if server else load_model(target, dtype, device, compiled, drafter="ngram")
    chat = Chat(model.loaded if model else load(target))
    end = float("inf") if seconds is None else time.monotonic() + seconds
    play = SelfPlay(
        chat=chat,
        overlap=overlap,
        seed=seed,
        temperatures=drawn,
        reply_len=reply_len,
        openings=beginnings,
        over=lambda: time.monotonic() >= end,
        dropped=dropped,
    )
    if model:
        err.print(f"{target}, {dtype}, {model.modes.name}", highlight=False)
        answering = nullcontext(EngineDecoder(model, batch))
    else:
        answering = ServerDecoder(str(server), str(server_model), chat, batch)
    with shards, Meter(err, total) as meter, answering as decoder:
        for made in together(play.talks(missing, turns), decoder, batch):
            shards.add(made)
            meter.show(made, decoder.decoded)
    reasons = "; ".join(f"{reason}: {count}" for reason, count in dropped.most_common())
    err.print(meter.line + (f"; dropped: {reasons}" if dropped else ""), highlight=False, soft_wrap=True)


@app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(help="A folder of shards.")],
    vocab_size: Annotated[int | None, typer.Option(min=1, help="Token ids must be below it.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Look for evaluation prompts too, decoding with this target's tokenizer.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check shards and say what they hold; exit code 2 when one is damaged, 1 when an evaluation prompt is in them."""
    from firesteel.train.conversations import Count, summary

    chat = None
    if target:
        from firesteel.models.loading import load
        from firesteel.train.chat import Chat

        loaded = load(target)
        chat, vocab_size = Chat(loaded), vocab_size or len(loaded.tokenizer)
    counts = summary(folder, vocab_size)
    overlaps = _overlaps(folder, chat) if chat else None

    everything = [*counts.values()]
    total = Count(*(sum(column) for column in zip(*map(astuple, everything), strict=True)))
    if as_json:
        by_temperature = {f"{temperature:g}": asdict(count) for temperature, count in counts.items()}
        print_text(json.dumps({**asdict(total), "temperatures": by_temperature, "overlaps": overlaps}) + "\n")
    else:
        table = Table("temperature", "conversations", "reply tokens", "looped")
        for name, count in [*((f"{temperature:g}", count) for temperature, count in counts.items()), ("all", total)]:
            table.add_row(name, *(str(number) for number in astuple(count)))
        out.print(table)
        for line in overlaps or []:
            out.print(line, markup=False, highlight=False, soft_wrap=True)
        if overlaps is not None:
            out.print(f"{len(overlaps)} conversations hold an evaluation prompt")
    if overlaps:
        raise typer.Exit(1)


def _missing(
    done: set[int], turns: dict[int, tuple[str, ...]] | None, limit: int | None
) -> tuple[Iterable[int], int | None]:
    """Which conversations are to be made, and how many they are where that is known."""
    if turns is None and limit is None:
        return (index for index in itertools.count() if index not in done), None
    wanted = range(limit or 0) if turns is None else [*turns][:limit]
    missing = [index for index in wanted if index not in done]
    return missing, len(missing)


def _overlaps(folder: Path, chat: Chat) -> list[str]:
    """One line per conversation whose prompt holds an evaluation prompt."""
    from firesteel.train.conversations import read_shard, shard_files
    from firesteel.train.overlap import Overlap

    overlap = Overlap()
    return [
        f"{file.name}, conversation {number}: {shared!r}"
        for file in shard_files(folder)
        for number, conversation in enumerate(read_shard(file))
        if (shared := overlap.find(chat.text(conversation.ids[: conversation.prompt_len].tolist())))
    ]
