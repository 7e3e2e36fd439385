"""Prove that an exported drafter is the same drafter in llama.cpp: the same text as without it, and the same drafts.

    python scripts/prove_export.py                        the shipped drafter, and a random one of every shape we export
    python scripts/prove_export.py DRAFTER --tokens 128   a trained one

Needs `make llama-cpp`. Each drafter is exported to an fp32 GGUF file and served by llama-server beside the default
target in fp32, K/V in fp32 too, so that what differs is rounding or a fault. Drafts are read from the server's log and
compared, token by token, with those that firesteel makes after the same tokens. One JSON object per drafter is printed:

    identical        replies that are llama-server's own without a drafter; ours_identical: that are firesteel's
    compared, same   by position in the block: drafted tokens after the same text in both engines, and the equal ones
    leads_nats       of every block that differs: by how much our pick was likelier, to us, than theirs at the first
                     difference; rounding turns near ties only
    odds             of the two likeliest tokens at a position, where neither is below 1/20: how many were compared, and
                     how many are equal as far as the log's three decimals go. Drafts of a random drafter are far from
                     ties, so that only these see weights that were rounded on the way

llama-server does not log what a DFlash 2 drafter drafts. There it is told to accept every draft (its synthetic
acceptance, meant for benchmarks), so that the drafts are the reply; odds are not compared.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, log, nan
from pathlib import Path
from typing import Any

import torch

from firesteel.bench import peers, report
from firesteel.bench.llama_server import served
from firesteel.bench.machine import machine
from firesteel.bench.prompts import held_out
from firesteel.default_target import DEFAULT_TARGET
from firesteel.export_command import gguf_name, write
from firesteel.model import Model
from firesteel.models.drafters.checkpoint import save_drafter
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.model import DrafterModel
from firesteel.models.drafters.pairs import SHIPPED
from firesteel.models.loading import resolve
from firesteel.rounds import RoundReport
from firesteel.sampling import SamplingParams

Drafts = dict[int, list[list[tuple[int, float]]]]
"""By how many tokens the text had before: the likeliest tokens at each position of the block, and their chances."""

_CANDIDATE = re.compile(r"draft candidate +([012]), pos +(\d+): +(\d+) \( *([\d.]+)\)")
_LEAST = 0.05  # chances below this have too few decimals in the log


_SHAPES: dict[str, dict[str, Any]] = {
    "dspark-8192": {"draft_vocab": 8192},
    "dspark": {},
    "dspark-causal": {"causal": (True, True)},
    "dspark-sliding": {"windows": (64, 64)},
    "dspark-no-confidence": {"confidence": False, "confidence_markov": False},
    "dspark-in-place": {"anchor_first": False},
    "dflash": {"kind": "dflash", "anchor_first": False},
    "dflash-anchor-first": {"kind": "dflash"},
    "dflash2": {
        "kind": "dflash2", "anchor_first": False, "conv_kernel": 2, "conv_group": 16, "selector_rank": 32,
    },
}  # fmt: skip
"""Random drafters by what is special about them."""


def random_drafter(folder: Path, changes: dict[str, Any]) -> Path:
    """One of the default target's size that has learnt nothing."""
    torch.manual_seed(0)
    heads = {"markov_rank": 32, "confidence": True, "confidence_markov": True}
    settings: dict[str, Any] = {
        "kind": "dspark", "anchor_first": True, "block_size": 5, "mask_token_id": 16, "target_layers": (3, 15, 27),
        "target_hidden": 576, "hidden": 576, "layers": 2, "heads": 9, "kv_heads": 3, "head_dim": 64,
        "intermediate": 1536, "eps": 1e-5, "vocab": 49152, "draft_vocab": 49152, "causal": (False, False),
        "windows": (None, None), "rope": {"rope_type": "default", "rope_theta": 100000.0}, "max_context": 8192,
        "target": DEFAULT_TARGET,
    }  # fmt: skip
    config = DrafterConfig(**{**settings, **(heads if changes.get("kind", "dspark") == "dspark" else {}), **changes})
    kept = torch.randperm(config.vocab)[: config.draft_vocab].sort().values if config.reduced else None
    model = DrafterModel(config, kept)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Wide enough that blocks differ and the Markov bias turns choices: a part without weight hides its faults.
            wide = "markov" in name or "selector" in name
            weight.normal_(1.0 if "norm" in name else 0.0, 0.6 if wide else 0.2)
    save_drafter(model, config, folder)
    return folder


def drafts_in(log: str, prompt_len: int, reply: list[int]) -> Drafts:
    """The server's drafts after each length of text."""
    rounds: Drafts = {}
    before = inf
    for rank, position, token, chance in _CANDIDATE.findall(log):
        if rank == "0":
            if int(position) <= before:  # the first is 1 where a block's first row is not used
                rounds[len(rounds)] = []
            rounds[len(rounds) - 1].append([])
        rounds[len(rounds) - 1][-1].append((int(token), float(chance)))
        before = int(position) if rank == "0" else before
    drafts, at = Drafts(), 1  # the first token comes from the prompt
    for drafted in rounds.values():
        drafts[prompt_len + at] = drafted
        kept = [a[0][0] == b for a, b in zip(drafted, reply[at:], strict=False)]
        at += 1 + (kept.index(False) if False in kept else len(kept))
    return drafts


def drafts_of_forced(prompt_len: int, reply: list[int], most: int) -> Drafts:
    """The drafts in a reply that took them all: a token from the prompt, then blocks, each with one of the target's."""
    starts = range(1, len(reply) - most, most + 1)
    return {prompt_len + at: [[(token, nan)] for token in reply[at : at + most]] for at in starts}


_PAGE = """\
Each drafter is exported to an fp32 GGUF file and served beside the default target in fp32, K/V in fp32. `blocks equal`:
drafts of llama.cpp that are, token for token, those that firesteel makes after the same text. `odds equal`: of the two
likeliest tokens at a position, as far as the three decimals of the server's log go. `by position`: equal tokens at each
position of the blocks compared. Random drafters have weights of the shipped one's size and no training: nothing of
theirs is accepted, but every part of them turns choices.

What this does not check: bf16 and Q8_0 files, whose rounding differs between the engines; sampling, where llama.cpp
verifies its argmax by the target's draw; the confidence head, which llama.cpp reads only with `--spec-draft-p-min`;
targets other than SmolLM2. What a DFlash 2 drafter drafts is not logged: it is read from replies in which the server
was told to accept every draft, and its odds are not compared. The other formats (deepspec, speculators) are read by
vLLM and SGLang, which are not run here.
"""


class Watched:
    """A drafter that remembers what it drafted: the candidates of every position, not only the picks."""

    def __init__(self, drafter: Any) -> None:
        self._drafter, self.last = drafter, None

    def draft(self, requests: Any, plan: Any) -> Any:
        [self.last] = drafts = self._drafter.draft(requests, plan)
        return drafts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)


def ours(model: Model, ids: list[int], reply: list[int]) -> tuple[list[int], int, Drafts]:
    """Our reply after the same first token, which llama.cpp takes without a draft; its rounds, and our drafts."""
    drafts, text, rounds = Drafts(), [*ids, *reply[:1]], 0

    def record(done: RoundReport) -> None:
        nonlocal rounds
        [tree], [outcome] = done.trees, done.outcomes
        drafts[len(text)] = likeliest(watched.last, tree.width - 1)
        text.extend([*tree.tokens[outcome.path[1:]].tolist(), outcome.token])
        rounds += 1

    assert model.drafter is not None
    engine = model.engine("chain", width=1 + model.drafter.model.config.drafts, record=record)
    engine.drafter = watched = Watched(engine.drafter)
    params = SamplingParams(temperature=0.0, max_tokens=len(reply) - 1)
    request = model.complete([*ids, *reply[:1]], params, engine)
    return [*reply[:1], *request.output], rounds, drafts


def our_drafts_after(model: Model, ids: list[int], reply: list[int], lengths: Iterable[int]) -> Drafts:
    """What we draft after the first tokens of a text that is not our own."""
    text, drafts = [*ids, *reply], Drafts()
    for length in lengths:
        # As many tokens as a full block needs, of which only the first round's draft is looked at.
        ended = [*text[length:], *[0] * 8][:8]
        drafts[length] = ours(model, text[: length - 1], [text[length - 1], *ended])[2][length]
    return drafts


def likeliest(draft: Any, count: int) -> list[list[tuple[int, float]]]:
    """The first `count` positions of one of our drafts, as `Drafts` has them."""
    if draft is None:
        return []
    return [
        list(zip(tokens.tolist(), chances.tolist(), strict=True))
        for tokens, chances in zip(draft.top_tokens[:count], draft.top_probs[:count], strict=True)
    ]


@dataclass
class Comparison:
    """Blocks of two engines after the same text."""

    compared: list[int]
    same: list[int]
    blocks: int = 0
    equal: int = 0
    leads: list[float | None] = field(default_factory=list)
    odds: list[bool] = field(default_factory=list)

    def add(self, theirs: Drafts, mine: Drafts) -> None:
        """Compare all blocks of one reply."""
        for length in theirs.keys() & mine.keys():
            # Our last blocks are as short as what may still come, and a block with fewer masks is another one.
            if len(theirs[length]) == len(mine[length]) == len(self.compared):
                self._block(theirs[length], mine[length])

    def _block(self, theirs: list[list[tuple[int, float]]], mine: list[list[tuple[int, float]]]) -> None:
        agree = True  # what follows a difference is drafted after another token
        for position, (their, my) in enumerate(zip(theirs, mine, strict=True)):
            same = their[0][0] == my[0][0]
            self.compared[position] += 1
            self.same[position] += same
            chances = dict(my)
            if agree and not same:
                other = chances.get(their[0][0])
                self.leads.append(None if other is None else log(my[0][1] / other))
            if agree:
                self._odds(their[:2], chances)
            agree = agree and same
        self.blocks += 1
        self.equal += agree

    def _odds(self, their: list[tuple[int, float]], chances: dict[int, float]) -> None:
        if len(their) < 2 or their[1][1] < _LEAST or not all(token in chances for token, _ in their):
            return
        (first, p), (second, q) = their
        hidden = 0.0005 / p + 0.0005 / q  # by the log's three decimals
        off = abs(log(p / q) - log(chances[first] / chances[second]))
        self.odds.append(off <= 1.1 * hidden)


def prove(drafter: Path, name: str, target: Path, prompts: int, tokens: int) -> dict[str, Any]:
    """One drafter's figures."""
    model = Model.load(DEFAULT_TARGET, dtype="fp32", compiled=False, drafter=str(drafter))
    assert model.drafter is not None
    most = model.drafter.model.config.drafts
    asked = [model.encode_chat([{"role": "user", "content": one.turns[0]}]) for one in held_out(limit=prompts)]
    fixed = f"-c 2048 -np 1 -ctk f32 -ctv f32 -fa off --no-warmup -t {peers.physical_cores()}".split()
    with served("-m", target, *fixed) as server:
        plain = [server.complete(ids, tokens)["tokens"] for ids in asked]
    count = {"identical": 0, "ours_identical": 0, "tokens": 0, "drafted": 0, "accepted": 0}
    our_rounds, found = 0, Comparison([0] * most, [0] * most)
    with tempfile.TemporaryDirectory() as scratch:
        config = write(str(drafter), Path(scratch) / "gguf", "gguf", DEFAULT_TARGET, "fp32")
        kind = "draft-dspark" if config.kind == "dspark" else "draft-dflash"
        fixed += ["-md", str(Path(scratch) / "gguf" / gguf_name("fp32"))]
        fixed += f"--spec-type {kind} --spec-draft-n-max {most} -ctkd f32 -ctvd f32 -lv 5".split()
        with served("-m", target, *fixed) as server:
            for ids, wanted in zip(asked, plain, strict=True):
                before = server.log.stat().st_size
                answer = server.complete(ids, tokens)
                reply, timings = answer["tokens"], answer["timings"]
                said = server.log.read_bytes()[before:].decode(errors="replace")
                our_reply, rounds, mine = ours(model, ids, reply)
                found.add(drafts_in(said, len(ids), reply), mine)
                our_rounds += rounds
                count["identical"] += reply == wanted
                count["ours_identical"] += our_reply == reply
                count["tokens"] += len(reply)
                count["drafted"] += timings.get("draft_n", 0)
                count["accepted"] += timings.get("draft_n_accepted", 0)
        if config.kind == "dflash2":
            with served("-m", target, *fixed, "--spec-synth-rates", ",".join(["1"] * most)) as server:
                for ids in asked:
                    reply = server.complete(ids, tokens)["tokens"]
                    theirs = drafts_of_forced(len(ids), reply, most)
                    found.add(theirs, our_drafts_after(model, ids, reply, theirs))
    timed = count["tokens"] - prompts
    return {
        "drafter": name, "kind": model.drafter.model.config.kind, "served_as": kind, "prompts": prompts, **count,
        "rounds": {"llama_cpp": timed - count["accepted"], "firesteel": our_rounds},
        "tokens_per_round": {"llama_cpp": timed / (timed - count["accepted"]), "firesteel": timed / our_rounds},
        "blocks": {"compared": found.blocks, "same": found.equal},
        "compared": found.compared, "same": found.same, "leads_nats": found.leads,
        "odds": {"compared": len(found.odds), "same": sum(found.odds)},
    }  # fmt: skip


def main() -> None:
    """Print one line of JSON per drafter, and write them to a file where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("drafters", nargs="*", type=Path)
    parser.add_argument("--random", default="", help=f"with commas between: {', '.join(_SHAPES)}")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--output", type=Path, help="a folder for export.json")
    asked = parser.parse_args()
    peers.program("llama-server")
    target = peers.gguf_file(resolve(DEFAULT_TARGET), "fp32")
    names = [name for name in asked.random.split(",") if name]
    if unknown := set(names) - set(_SHAPES):
        parser.error(f"no such random drafter: {', '.join(sorted(unknown))}")
    drafters = {one.resolve().name: one for one in asked.drafters}
    if not names and not drafters:
        names, drafters = [*_SHAPES], {"shipped": SHIPPED}
    records = []
    with tempfile.TemporaryDirectory() as scratch:
        drafters |= {f"random {name}": random_drafter(Path(scratch) / name, _SHAPES[name]) for name in names}
        for name, drafter in drafters.items():
            records.append(prove(drafter, name, target, asked.prompts, asked.tokens))
            sys.stdout.write(json.dumps(records[-1]) + "\n")
            sys.stdout.flush()
    if asked.output is not None:
        command = " ".join(["python scripts/prove_export.py", *sys.argv[1:]])
        result = {"machine": machine(), "command": command, "llama_cpp": peers.version(), "records": records}
        title = "Exported drafters in llama.cpp"
        report.write(result, asked.output, "export", title, f"llama.cpp: {peers.version()}.\n", _PAGE, table(records))


def table(records: list[dict[str, Any]]) -> str:
    """Markdown: one line per drafter."""
    lines = [
        "| drafter | served as | replies: as without it, as ours | rounds: theirs, ours | accepted | blocks equal |"
        " by position | odds equal |",
        "|---|---|---|---|---:|---:|---|---:|",
    ]
    for one in records:
        replies = f"{one['identical']} and {one['ours_identical']} of {one['prompts']}"
        rounds = f"{one['rounds']['llama_cpp']}, {one['rounds']['firesteel']}"
        by_position = ", ".join(map(str, one["same"]))
        blocks, odds = (f"{one[name]['same']} of {one[name]['compared']}" for name in ("blocks", "odds"))
        cells = [one["drafter"], one["served_as"], replies, rounds, one["accepted"], blocks, by_position, odds]
        lines.append(f"| {' | '.join(map(str, cells))} |")
        lines += [
            f"| | | | | | | differs; ours was likelier by {'more' if lead is None else f'{lead:.1g} nats'} | |"
            for lead in one["leads_nats"]
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
