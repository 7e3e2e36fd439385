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


def decode_tables(result: dict[str, Any]) -> str:
    """Markdown: one line per arm, and where a round's milliseconds go."""
    lines = [
        "| policy | drafter | width | replies | looped | tokens/s | tokens/round | ratio | 95% interval |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for arm in result["arms"]:
        ratio = ["", ""]
        if arm["ratio"] is not None:
            ratio = [f"{arm['ratio']:.3f}", f"{arm['ratio_low']:.3f} to {arm['ratio_high']:.3f}"]
        cells = [arm["policy"], arm["drafter"], arm["width"] or "", arm["replies"], arm["looped"]]
        cells += [f"{arm['decode_tokens_per_s']:.1f}", f"{arm['tokens_per_round']:.2f}", *ratio]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "\nMilliseconds of a round (medians): the drafter, the target's forward, and the host's everything else.\n",
        "| policy | drafter | width | rounds | draft | verify | host |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for one in result["rounds"]:
        ms = [one[name] for name in ("draft_ms", "verify_ms", "host_ms")]
        parts = " | ".join("" if part is None else f"{part:.2f}" for part in ms)
        lines.append(f"| {one['policy']} | {one['drafter']} | {one['width'] or ''} | {one['rounds']} | {parts} |")
    return "\n".join(lines)


def eval_tables(result: dict[str, Any]) -> str:
    """Markdown of `firesteel eval`: per temperature, tokens per round and acceptance by source, and the confidence."""
    parts = []
    for run in result["temperatures"]:
        positions = range(1, run["drafts"] + 1)
        lines = [
            f"T = {run['temperature']:g}, chains of {run['drafts']} drafts; acceptance given all before it:\n",
            "| source | tokens/round | rounds | " + " | ".join(map(str, positions)) + " |",
            "|---|---:|---:|" + "---:|" * len(positions),
        ]
        for name, one in [("all", run), *run["sources"].items()]:
            reached = [f"{share:.3f}" for share in one["acceptance"]]
            shares = " | ".join([*reached, *[""] * (len(positions) - len(reached))])
            lines.append(f"| {name} | {one['tokens_per_round']:.3f} | {one['rounds']} | {shares} |")
        if "confidence" in run:
            lines += [
                "\n| confidence head | mean | accepted | ECE | AUC | Brier |",
                "|---|---:|---:|---:|---:|---:|",
            ]
            for name, one in [("all", run), *run["sources"].items()]:
                if (c := one.get("confidence")) is None:  # a source without a draft
                    continue
                area = "" if c["auc"] is None else f"{c['auc']:.3f}"
                lines.append(
                    f"| {name} | {c['mean']:.3f} | {c['accepted']:.3f} | {c['ece']:.3f} | {area} | {c['brier']:.3f} |"
                )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def policy_table(records: Sequence[Record]) -> str:
    """Markdown: milliseconds of a round's deciding and learning, by what there is to decide about."""
    lines = [
        "| round | requests | candidates | widths | plan, ms | grow, ms | learn, ms | together, ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in records:
        times = [f"{one[name]:.3f}" for name in ("plan_ms", "grow_ms", "learn_ms", "total_ms")]
        counts = [str(one[name]) for name in ("requests", "candidates", "widths")]
        lines.append(f"| {' | '.join([one['case'], *counts, *times])} |")
    return "\n".join(lines)


def quality_table(records: Sequence[Record]) -> str:
    """Markdown: mean KL to fp32 and how often the likeliest token is the same."""
    lines = ["| engine | dtype | tokens | mean KL to fp32, nats | same likeliest token |", "|---|---|---:|---:|---:|"]
    for record in records:
        same = "" if record["same_top"] is None else f"{record['same_top']:.2%}"
        lines.append(
            f"| {record['engine']} | {record['dtype']} | {record['tokens']} | {record['mean_kl']:.5f} | {same} |"
        )
    return "\n".join(lines)


def write(result: dict[str, Any], folder: Path, name: str, title: str, *body: str) -> None:
    """Write `NAME.json` and `NAME.md`, with the lines that say where the figures come from."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    text = "\n".join([f"# {title}\n", provenance(result), *body])
    (folder / f"{name}.md").write_text(text + "\n", encoding="utf-8")


def write_width(result: dict[str, Any], folder: Path) -> None:
    """Write `width.json`, `width.md` and, with matplotlib, `width.svg` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    plotted = _plot(result["records"], folder / "width.svg")
    body = [
        "T(n, c): the milliseconds of one target forward of n rows against c cached tokens, every row scored.",
        "`llama.cpp native-rows` scores every row too; its `native` scores the last one only.\n",
        width_tables(result["records"]),
    ]
    if plotted:
        body.append("\n![Forwards by width](width.svg)")
    write(result, folder, "width", "Forwards by width", *body)


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
