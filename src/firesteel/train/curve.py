"""The log of a training run, drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of `log.jsonl`, of each step the last: a run that went on from an older state repeats some."""
    lines: dict[tuple[int, bool], dict[str, Any]] = {}
    for text in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        lines[line["step"], "validation" in line] = line
    return [lines[key] for key in sorted(lines)]


def draw_curve(folder: Path) -> None:
    """Write `curve.svg`: tokens per round by step, in training and in validation. Without matplotlib, nothing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:  # an extra: the log says the same
        return
    lines = read_log(folder)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    trained = [line for line in lines if "tokens_per_round" in line]
    validated = [line for line in lines if "validation" in line]
    axes.plot(
        [line["step"] for line in trained],
        [line["tokens_per_round"] for line in trained],
        color="0.7",
        label="training, sampled chains, from random anchors",
    )
    axes.plot(
        [line["step"] for line in validated],
        [line["validation"]["tokens_per_round"] for line in validated],
        marker=".",
        label="validation, greedy chains",
    )
    axes.set(xlabel="step", ylabel="tokens per round", ylim=(1, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / "curve.svg")
