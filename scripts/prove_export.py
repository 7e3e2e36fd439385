"""Prove that an exported drafter is the same drafter in llama.cpp: the same text as without it, and the same drafts.

    python scripts/prove_export.py                        two random drafters: a reduced vocabulary, and the whole one
    python scripts/prove_export.py DRAFTER --tokens 128   a trained one

Needs `make llama-cpp`. Each drafter is exported to an fp32 GGUF file and served by llama-server beside the default
target in fp32, K/V in fp32 too, so that what differs is rounding or a fault. Drafts are read from the server's log and
compared, token by token, with those that firesteel makes after the same tokens. One JSON object per drafter is printed:

    identical         replies that are llama-server's own without a drafter; ours_identical: that are firesteel's
    compared, same    drafted tokens after the same text in both engines, and how many of them are equal
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from firesteel.bench import peers
from firesteel.bench.machine import processor_name
from firesteel.bench.prompts import held_out
from firesteel.default_target import DEFAULT_TARGET
from firesteel.export_command import export, gguf_name
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


def random_drafter(folder: Path, draft_vocab: int) -> Path:
    """One of the default target's size that has learnt nothing."""
    torch.manual_seed(0)
    config = DrafterConfig(
        kind="dspark", anchor_first=True, block_size=5, mask_token_id=16, target_layers=(3, 15, 27),
        target_hidden=576, hidden=576, layers=2, heads=9, kv_heads=3, head_dim=64, intermediate=1536, eps=1e-5,
        vocab=49152, draft_vocab=draft_vocab, rope={"rope_type": "default", "rope_theta": 100000.0},
        causal=(False, False), windows=(None, None), max_context=8192, markov_rank=32, confidence=True,
        confidence_markov=True, target=DEFAULT_TARGET,
    )  # fmt: skip
    kept = torch.randperm(config.vocab)[:draft_vocab].sort().values if config.reduced else None
    model = DrafterModel(config, kept)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Wide enough that blocks differ and the Markov bias turns choices: a part without weight hides its faults.
            weight.normal_(1.0 if "norm" in name else 0.0, 0.6 if "markov" in name else 0.2)
    save_drafter(model, config, folder)
    return folder


@contextmanager
def served(*arguments: object) -> Iterator[tuple[str, Path]]:
    """A llama-server's address and its log, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fixed = f"--port {port} -c 2048 -np 1 -ctk f32 -ctv f32 -fa off --no-warmup -t {peers.physical_cores()}".split()
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        command = [str(word) for word in (peers.program("llama-server"), *fixed, *arguments)]
        with log.open("w") as said, subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT) as server:
            try:
                _wait(f"http://127.0.0.1:{port}/health", server, log)
                yield f"http://127.0.0.1:{port}", log
            finally:
                server.terminate()


def _wait(url: str, server: subprocess.Popen[bytes], log: Path, most_s: float = 300.0) -> None:
    begun = time.monotonic()
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError as error:
            if server.poll() is not None or time.monotonic() - begun > most_s:
                raise peers.PeerError(f"llama-server did not start: {log.read_text()[-800:]}") from error
            time.sleep(0.2)


def complete(address: str, ids: list[int], tokens: int) -> dict[str, Any]:
    """A greedy reply of llama-server: its `tokens`, and its `timings` with the counts of drafts."""
    body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "cache_prompt": False, "return_tokens": True}
    request = urllib.request.Request(f"{address}/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return dict(json.loads(answer.read()))


def drafts_in(log: str, prompt_len: int, reply: list[int]) -> Drafts:
    """The server's drafts after each length of text."""
    rounds: list[list[int]] = []
    for position, token in _CANDIDATE.findall(log):
        if position == "0":
            rounds.append([])
        rounds[-1].append(int(token))
    drafts, at = Drafts(), 1  # the first token comes from the prompt
    for drafted in rounds:
        drafts[prompt_len + at] = drafted
        kept = [a == b for a, b in zip(drafted, reply[at:], strict=False)]
        at += 1 + (kept.index(False) if False in kept else len(kept))
    return drafts


def ours(model: Model, ids: list[int], reply: list[int]) -> tuple[list[int], Drafts]:
    """Our reply and drafts after the same first token: llama.cpp takes that one from the prompt without a draft."""
    drafts, text = Drafts(), [*ids, *reply[:1]]

    def record(report: RoundReport) -> None:
        [tree], [outcome] = report.trees, report.outcomes
        drafts[len(text)] = tree.tokens[1:].tolist()
        text.extend([*tree.tokens[outcome.path[1:]].tolist(), outcome.token])

    assert model.drafter is not None
    engine = model.engine("chain", width=1 + model.drafter.model.config.drafts, record=record)
    params = SamplingParams(temperature=0.0, max_tokens=len(reply) - 1)
    request = model.complete([*ids, *reply[:1]], params, engine)
    return [*reply[:1], *request.output], drafts


def prove(drafter: Path, name: str, target: Path, prompts: int, tokens: int) -> dict[str, Any]:
    """One drafter's figures."""
    model = Model.load(DEFAULT_TARGET, dtype="fp32", compiled=False, drafter=str(drafter))
    asked = [model.encode_chat([{"role": "user", "content": one.turns[0]}]) for one in held_out(limit=prompts)]
    with served("-m", target) as (address, _):
        plain = [complete(address, ids, tokens)["tokens"] for ids in asked]
    count = {"identical": 0, "ours_identical": 0, "tokens": 0, "drafted": 0, "accepted": 0, "our_accepted": 0}
    count |= {"compared": 0, "same": 0}
    with tempfile.TemporaryDirectory() as scratch:
        export(str(drafter), Path(scratch) / "gguf", "gguf", dtype="fp32")
        file = Path(scratch) / "gguf" / gguf_name("fp32")
        most = model.drafter.model.config.drafts if model.drafter else 0
        kind = f"--spec-type draft-dspark --spec-draft-n-max {most} -ctkd f32 -ctvd f32 -lv 5".split()
        with served("-m", target, "-md", file, *kind) as (address, log):
            for ids, wanted in zip(asked, plain, strict=True):
                before = log.stat().st_size
                answer = complete(address, ids, tokens)
                reply, timings = answer["tokens"], answer["timings"]
                theirs = drafts_in(log.read_bytes()[before:].decode(errors="replace"), len(ids), reply)
                our_reply, mine = ours(model, ids, reply)
                count["identical"] += reply == wanted
                count["ours_identical"] += our_reply == reply
                count["tokens"] += len(reply)
                count["drafted"] += timings.get("draft_n", 0)
                count["accepted"] += timings.get("draft_n_accepted", 0)
                count["our_accepted"] += len(our_reply) - 1 - len(mine)
                for length in theirs.keys() & mine.keys():
                    # Our last blocks are as short as what may still come, and a block with fewer masks is another one.
                    if len(theirs[length]) == len(mine[length]):
                        count["compared"] += len(mine[length])
                        count["same"] += sum(map(int.__eq__, theirs[length], mine[length]))
    rounds = {"llama_cpp": count["tokens"] - prompts - count["accepted"]}
    rounds["firesteel"] = count["tokens"] - prompts - count["our_accepted"]
    per_round = {engine: (count["tokens"] - prompts) / n for engine, n in rounds.items()}
    return {"drafter": name, "prompts": prompts, **count, "tokens_per_round": per_round, "processor": processor_name()}


def main() -> None:
    """Print one line of JSON per drafter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("drafters", nargs="*", type=Path)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    asked = parser.parse_args()
    peers.program("llama-server")
    target = peers.gguf_file(resolve(DEFAULT_TARGET), "fp32")
    with tempfile.TemporaryDirectory() as scratch:
        made = {} if asked.drafters else {"random, 8192 tokens": 8192, "random, all tokens": 49152}
        drafters = {str(one): one for one in asked.drafters}
        drafters |= {name: random_drafter(Path(scratch) / str(size), size) for name, size in made.items()}
        for name, drafter in drafters.items():
            sys.stdout.write(json.dumps(prove(drafter, name, target, asked.prompts, asked.tokens)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
