"""Result files: JSON for programs, Markdown for readers, SVG for eyes."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def width_tables(records: Sequence[Record]) -> str:
    """Markdown: per context, one line per engine, mode and dtype; milliseconds by rows and T(8)/T(1)."""
    parts = []
    for context in sorted({record["context"] for record in records}):
        here = [record for record in records if record["context"] == context]
        rows = sorted({record["rows"] for record in here})
        lines = [
            f"Context {context}, milliseconds of one forward:\n",
            "| engine | mode | dtype | " + " | ".join(f"n={n}" for n in rows) + " | T(8)/T(1) |",
            "|---|---|---|" + "---:|" * (len(rows) + 1),
        ]
        for engine, mode, dtype in _series(here):
            ms = _curve(here, engine, mode, dtype)
            cells = [f"{ms[n]:.1f}" if n in ms else "" for n in rows]
            slope = f"{ms[8] / ms[1]:.2f}" if {1, 8} <= ms.keys() else ""
            lines.append(f"| {engine} | {mode} | {dtype} | {' | '.join(cells)} | {slope} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def write_width(result: dict[str, Any], folder: Path, name: str = "width") -> None:
    """Write `width.json`, `width.md` and, with matplotlib, `width.svg` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    plotted = _plot(result["records"], folder / f"{name}.svg")
    text = [
        "# Forwards by width\n",
        "T(n, c): the milliseconds of one target forward of n rows against c cached tokens, every row scored.",
        "`llama.cpp native-rows` scores every row too; its `native` scores the last one only.\n",
        provenance(result),
        width_tables(result["records"]),
    ]
    if plotted:
        text.append(f"\n![Forwards by width]({name}.svg)")
    (folder / f"{name}.md").write_text("\n".join(text) + "\n", encoding="utf-8")


def provenance(result: dict[str, Any]) -> str:
    """The lines that say where figures come from: command, machine, date."""
    machine = result["machine"]
    return (
        f"- Command: `{result['command']}`\n"
        f"- Machine: {machine['processor']}, {machine['cores']} cores, {', '.join(machine['instruction_sets'])}; "
        f"torch {machine['torch']}, {machine['threads']} threads\n"
        f"- Date: {datetime.date.today().isoformat()}\n"
    )


def _series(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    return list(dict.fromkeys((r["engine"], r["mode"], r["dtype"]) for r in records))


def _curve(records: Sequence[Record], engine: str, mode: str, dtype: str) -> dict[int, float]:
    return {r["rows"]: r["ms"] for r in records if (r["engine"], r["mode"], r["dtype"]) == (engine, mode, dtype)}


def _plot(records: Sequence[Record], file: Path) -> bool:
    try:
        from matplotlib.figure import Figure
    except ImportError:  # the tables say the same
        return False
    contexts = sorted({record["context"] for record in records})
    figure = Figure(figsize=(4.2 * len(contexts), 4.2), layout="constrained")
    for axis, context in zip(figure.subplots(1, len(contexts), squeeze=False)[0], contexts, strict=True):
        here = [record for record in records if record["context"] == context]
        for engine, mode, dtype in _series(here):
            ms = _curve(here, engine, mode, dtype)
            style = {"llama.cpp": "--"}.get(engine, "-" if mode == "compiled" else ":")
            axis.plot(list(ms), list(ms.values()), style, marker=".", label=f"{engine} {mode} {dtype}")
        axis.set(title=f"context {context}", xlabel="rows", ylabel="ms", xscale="log", yscale="log")
        axis.set_xticks(
            sorted({r["rows"] for r in here}), [str(n) for n in sorted({r["rows"] for r in here})], fontsize=7
        )
        axis.grid(alpha=0.3)
    axis.legend(fontsize=6)
    figure.savefig(file)
    return True
