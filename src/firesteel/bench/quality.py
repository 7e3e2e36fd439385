"""`bench quality`: how far a dtype's probabilities are from fp32's, on held-out text.

The protocol is that of llama.cpp's own program: windows of 512 tokens, the second half of each scored, so that every
scored token has at least 256 tokens before it.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firesteel.bench import peers
from firesteel.bench.prompts import held_out
from firesteel.model import NGRAM, Model
from firesteel.models.quantize import mean_kl
from firesteel.models.rows import pack
from firesteel.models.target import Target, new_cache
from firesteel.tree import TokenTree

WINDOW = 512


def held_out_text() -> str:
    """The held-out questions of the package, one after another."""
    return "\n\n".join(turn for conversation in held_out() for turn in conversation.turns)


def measure(
    target: str,
    dtypes: Sequence[str],
    windows: int,
    llama_cpp: bool | None,
    on_window: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Records `{engine, mode, dtype, tokens, mean_kl, same_top}` against fp32 by transformers' own code.

    Fields of a record:
        tokens: how many were scored.
        mean_kl: mean over them of KL(fp32 || dtype), in nats.
        same_top: share of them whose likeliest next token is fp32's; None for llama.cpp, which does not say.
    """
    reference = Model.load(target, compiled=False, drafter=NGRAM)
    ids = reference.encode(held_out_text())
    windows = min(windows, len(ids) // WINDOW)
    texts = [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(windows)]
    records = []
    for dtype in dtypes:
        model = Model.load(target, dtype=dtype, compiled=True, drafter=NGRAM)
        kl, same = [], []
        for text in texts:
            p, q = score(reference.target, text), score(model.target, text)
            kl.append(mean_kl(p, q))
            same.append(float((p.argmax(-1) == q.argmax(-1)).float().mean()))
            on_window()
        records.append(
            {
                "engine": "firesteel",
                "mode": "compiled",
                "dtype": dtype,
                "tokens": windows * WINDOW // 2,
                "mean_kl": statistics.mean(kl),
                "same_top": statistics.mean(same),
            }
        )
    if llama_cpp or (llama_cpp is None and peers.is_built()):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "text.txt"
            file.write_text(held_out_text(), encoding="utf-8")
            mean = peers.q8_0_mean_kl(reference.loaded.folder, file, context=WINDOW, chunks=windows)
        records.append(
            {
                "engine": "llama.cpp",
                "mode": "native",
                "dtype": "int8",
                "tokens": windows * WINDOW // 2,
                "mean_kl": mean,
                "same_top": None,
            }
        )
    return records


def score(target: Target, text: Sequence[int]) -> Tensor:
    """Logits fp32 [len(text) / 2, vocab] of the second half of a text."""
    cache = new_cache(target, slots=1)
    cache.reserve([cache.acquire()], [len(text)])
    rows = pack([TokenTree.chain(text[0], text[1:])], [0], [0], target.device)
    keep = torch.arange(len(text) // 2, len(text), device=target.device)
    return target.forward(rows, cache, keep)[0]
