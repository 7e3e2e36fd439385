"""Prove that an exported drafter is the same drafter in llama.cpp: the same text as without it, and the same drafts.

    python scripts/prove_export.py                        random drafters, one for every shape that the exporter knows
    python scripts/prove_export.py DRAFTER --tokens 128   a trained one

Needs `make llama-cpp`. Each drafter is exported to an fp32 GGUF file and served by llama-server beside the default
target in fp32, K/V in fp32 too, so that what differs is rounding or a fault. Drafts are read from the server's log and
compared, token by token, with those that firesteel makes after the same tokens. One JSON object per drafter is printed:

    identical          replies that are llama-server's own without a drafter; ours_identical: that are firesteel's
    compared, same     by position in the block: drafted tokens after the same text in both engines, and the equal ones
    leads_nats         of every block that differs: by how much our pick was likelier, to us, than theirs at the first
                       difference; rounding turns near ties only

llama-server does not log the drafts of a DFlash 2 drafter: of these only texts and counts are compared.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from math import log
from pathlib import Path
from typing import Any

import torch

from firesteel.bench import peers
from firesteel.bench.llama_server import served
from firesteel.bench.machine import machine
from firesteel.bench.prompts import held_out
from firesteel.default_target import DEFAULT_TARGET
from firesteel.export_command import gguf_name, write
from firesteel.model import Model
from firesteel.models.drafters.checkpoint import save_drafter
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.model import DrafterModel
from firesteel.models.loading import resolve
from firesteel.rounds import RoundReport
from firesteel.sampling import SamplingParams

Drafts = dict[int, list[int]]
"""What was drafted, by how many tokens the text had before: prompt and reply."""

_CANDIDATE = re.compile(r"draft candidate +0, pos +(\d+): +(\d+)")


_SHAPES: dict[str, dict[str, Any]] = {
    "dspark, 8192 tokens": {"draft_vocab": 8192},
    "dspark, all tokens": {},
    "dspark, causal blocks": {"causal": (True, True)},
    "dspark, no confidence": {"confidence": False, "confidence_markov": False},
    "dspark, in place": {"anchor_first": False},
    "dflash": {"kind": "dflash", "anchor_first": False},
    "dflash, anchor first": {"kind": "dflash"},
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
    rounds: list[list[int]] = []
    before = -1
    for position, token in ((int(a), int(b)) for a, b in _CANDIDATE.findall(log)):
        if not rounds or position <= before:  # the first is 1 where a block's first row is not used
            rounds.append([])
        rounds[-1].append(token)
        before = position
    drafts, at = Drafts(), 1  # the first token comes from the prompt
    for drafted in rounds:
        drafts[prompt_len + at] = drafted
        kept = [a == b for a, b in zip(drafted, reply[at:], strict=False)]
        at += 1 + (kept.index(False) if False in kept else len(kept))
    return drafts


class Watched:
    """A drafter that remembers what it drafted: the candidates of every position, not only the picks."""

    def __init__(self, drafter: Any) -> None:
        self._drafter, self.last = drafter, None

    def draft(self, requests: Any, plan: Any) -> Any:
        [self.last] = drafts = self._drafter.draft(requests, plan)
        return drafts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)


def ours(model: Model, ids: list[int], reply: list[int]) -> tuple[list[int], Drafts, dict[int, Any]]:
    """Our reply, our drafts and their candidates after the same first token: llama.cpp takes it without a draft."""
    drafts, candidates, text = Drafts(), {}, [*ids, *reply[:1]]

    def record(report: RoundReport) -> None:
        [tree], [outcome] = report.trees, report.outcomes
        drafts[len(text)], candidates[len(text)] = tree.tokens[1:].tolist(), watched.last
        text.extend([*tree.tokens[outcome.path[1:]].tolist(), outcome.token])

    assert model.drafter is not None
    engine = model.engine("chain", width=1 + model.drafter.model.config.drafts, record=record)
    engine.drafter = watched = Watched(engine.drafter)
    params = SamplingParams(temperature=0.0, max_tokens=len(reply) - 1)
    request = model.complete([*ids, *reply[:1]], params, engine)
    return [*reply[:1], *request.output], drafts, candidates


def lead(draft: Any, position: int, token: int) -> float | None:
    """By how many nats our pick at a position is likelier than `token`; None where that is not among our candidates."""
    found = (draft.top_tokens[position] == token).nonzero()[0]
    return float(log(draft.top_probs[position, 0] / draft.top_probs[position, found[0]])) if len(found) else None


def prove(drafter: Path, name: str, target: Path, prompts: int, tokens: int) -> dict[str, Any]:
    """One drafter's figures."""
    model = Model.load(DEFAULT_TARGET, dtype="fp32", compiled=False, drafter=str(drafter))
    assert model.drafter is not None
    most = model.drafter.model.config.drafts
    asked = [model.encode_chat([{"role": "user", "content": one.turns[0]}]) for one in held_out(limit=prompts)]
    fixed = f"-c 2048 -np 1 -ctk f32 -ctv f32 -fa off --no-warmup -t {peers.physical_cores()}".split()
    with served("-m", target, *fixed) as server:
        plain = [server.complete(ids, tokens)["tokens"] for ids in asked]
    count = {"identical": 0, "ours_identical": 0, "tokens": 0, "drafted": 0, "accepted": 0, "our_accepted": 0}
    count |= {"rounds_compared": 0, "rounds_same": 0}
    compared, same, leads = [0] * most, [0] * most, []
    with tempfile.TemporaryDirectory() as scratch:
        config = write(str(drafter), Path(scratch) / "gguf", "gguf", DEFAULT_TARGET, "fp32")
        kind = "draft-dspark" if config.kind == "dspark" else "draft-dflash"
        words = f"--spec-type {kind} --spec-draft-n-max {most} -ctkd f32 -ctvd f32 -lv 5".split()
        with served("-m", target, "-md", Path(scratch) / "gguf" / gguf_name("fp32"), *fixed, *words) as server:
            for ids, wanted in zip(asked, plain, strict=True):
                before = server.log.stat().st_size
                answer = server.complete(ids, tokens)
                reply, timings = answer["tokens"], answer["timings"]
                said = server.log.read_bytes()[before:].decode(errors="replace")
                theirs = drafts_in(said, len(ids), reply)
                our_reply, mine, candidates = ours(model, ids, reply)
                count["identical"] += reply == wanted
                count["ours_identical"] += our_reply == reply
                count["tokens"] += len(reply)
                count["drafted"] += timings.get("draft_n", 0)
                count["accepted"] += timings.get("draft_n_accepted", 0)
                count["our_accepted"] += len(our_reply) - 1 - len(mine)
                for length in theirs.keys() & mine.keys():
                    # Our last blocks are as short as what may still come, and a block with fewer masks is another one.
                    if len(theirs[length]) != len(mine[length]):
                        continue
                    equal = [a == b for a, b in zip(theirs[length], mine[length], strict=True)]
                    count["rounds_compared"] += 1
                    count["rounds_same"] += all(equal)
                    compared, same = [n + 1 for n in compared], [n + ok for n, ok in zip(same, equal, strict=True)]
                    if not all(equal):  # what follows a difference is drafted after another token
                        at = equal.index(False)
                        leads.append(lead(candidates[length], at, theirs[length][at]))
    rounds = {"llama_cpp": count["tokens"] - prompts - count["accepted"]}
    rounds["firesteel"] = count["tokens"] - prompts - count["our_accepted"]
    per_round = {engine: (count["tokens"] - prompts) / n for engine, n in rounds.items()}
    return {
        "drafter": name, "kind": model.drafter.model.config.kind, "served_as": kind, "prompts": prompts, **count,
        "compared": compared, "same": same, "leads_nats": leads, "tokens_per_round": per_round,
    }  # fmt: skip


def main() -> None:
    """Print one line of JSON per drafter, and write the page where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("drafters", nargs="*", type=Path)
    parser.add_argument("--random", default="", help="names of random ones, with / between; all without any drafter")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--output", type=Path, help="a folder for export.json")
    asked = parser.parse_args()
    peers.program("llama-server")
    target = peers.gguf_file(resolve(DEFAULT_TARGET), "fp32")
    names = [*filter(None, asked.random.split("/"))] if asked.random or asked.drafters else [*_SHAPES]
    records = []
    with tempfile.TemporaryDirectory() as scratch:
        drafters = {one.name: one for one in asked.drafters}
        drafters |= {f"random {name}": random_drafter(Path(scratch) / name, _SHAPES[name]) for name in names}
        for name, drafter in drafters.items():
            records.append(prove(drafter, name, target, asked.prompts, asked.tokens))
            sys.stdout.write(json.dumps(records[-1]) + "\n")
            sys.stdout.flush()
    if asked.output is not None:
        about = {"machine": machine(), "command": " ".join(["python", *sys.argv]), "llama_cpp": peers.version()}
        (asked.output / "export.json").write_text(json.dumps({**about, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
