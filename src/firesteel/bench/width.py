"""`bench width`: T(n, c), the milliseconds of one target forward of n rows against c cached tokens."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from firesteel.bench import peers
from firesteel.bench.peers import CONTEXTS, ROWS
from firesteel.errors import unknown
from firesteel.model import NGRAM, Model
from firesteel.models.cache import KVCache
from firesteel.models.rows import pack
from firesteel.models.target import Target, new_cache
from firesteel.tree import Source, TokenTree

MODES = ("compiled", "eager")


def tree_of(width: int, vocab_size: int, seed: int = 0) -> TokenTree:
    """A tree of random tokens and random shape; the logits of all its rows are computed, as in a verify."""
    random = np.random.default_rng(seed)
    return TokenTree(
        tokens=random.integers(0, vocab_size, width),
        parents=np.array([-1, *(int(random.integers(0, row)) for row in range(1, width))], np.int64),
        sources=np.array([Source.ANCHOR, *[Source.PICK] * (width - 1)], np.int64),
        ranks=np.zeros(width, np.int64),
        q=np.ones(width),
    )


@dataclass(frozen=True)
class WidthBench:
    """Times a target's forward.

    Args:
        target: whose forward is timed; the whole call, from packed rows to logits on the host's side of the device.
        repeats: timed forwards per (rows, context), one a sweep; the median is reported.
    """

    target: Target
    repeats: int = 10

    def run(
        self,
        rows: Sequence[int] = ROWS,
        contexts: Sequence[int] = CONTEXTS,
        on_cell: Callable[[], None] = lambda: None,
    ) -> Iterator[dict[str, Any]]:
        """Records `{context, rows, ms}`. A context is swept round after round, so that drift meets all its cells."""
        for context in contexts:
            cache = self._cache(context + max(rows))
            for width in rows:  # the first forward of a shape pays for buffers
                self._once(cache, width, context)
            times: dict[int, list[float]] = {width: [] for width in rows}
            for sweep in range(self.repeats):
                for width in rows if sweep % 2 else reversed(rows):
                    times[width].append(self._once(cache, width, context))
                    on_cell()
            for width in rows:
                yield {"context": context, "rows": width, "ms": statistics.median(times[width])}

    def _cache(self, places: int) -> KVCache:
        cache = new_cache(self.target, slots=1)
        cache.reserve([cache.acquire()], [places])
        cache.keys.normal_()
        cache.values.normal_()
        return cache

    def _once(self, cache: KVCache, width: int, context: int) -> float:
        rows = pack([tree_of(width, self.target.shape.vocab_size)], [0], [context], self.target.device)
        begun = time.perf_counter()
        self.target.forward(rows, cache)
        if self.target.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) * 1e3


def measure(
    target: str,
    chosen: Sequence[tuple[str, str]],
    rows: Sequence[int],
    contexts: Sequence[int],
    repeats: int,
    llama_cpp: bool | None,
    device: str | None,
    on_cell: Callable[[], None],
) -> list[dict[str, Any]]:
    """Records `{engine, mode, dtype, context, rows, ms}` of ours for each (mode, dtype), and of llama.cpp.

    Args:
        chosen: ("compiled" or "eager", dtype) pairs.
        llama_cpp: measure llama.cpp too; None where it is built and the target is a folder it can convert.

    Raises:
        MissingTool: llama.cpp is asked for and not built.
    """
    records: list[dict[str, Any]] = []
    folder = ""
    for mode, dtype in chosen:
        if mode not in MODES:
            raise unknown("mode", mode, MODES)
        model = Model.load(target, dtype=dtype, device=device, compiled=mode == "compiled", drafter=NGRAM)
        folder = model.loaded.folder
        for record in WidthBench(model.target, repeats).run(rows, contexts, on_cell):
            records.append({"engine": "firesteel", "mode": mode, "dtype": dtype, **record})
    if llama_cpp or (llama_cpp is None and peers.is_built()):
        records += peers.width_curve(folder, rows=rows, contexts=contexts, repetitions=repeats)
    return records
