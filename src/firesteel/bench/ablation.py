"""`bench adaspark`: the policy against itself with its width pinned (AdaSpark Table 3) and taken apart (Table 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from firesteel.bench.decode import Arm, parse_arms, run, summary
from firesteel.bench.prompts import Conversation
from firesteel.bench.statistics import geometric_mean_interval
from firesteel.model import Model
from firesteel.sampling import SamplingParams

PINNED = (1, 2, 4, 6, 8, 12, 16, 24)
WHOLE = "adaspark"

Key = tuple[str, int]  # conversation, turn


def arms_of(model: Model) -> dict[str, Arm]:
    """The arms by what the tables call them: plain decoding first, then each addition, then the pinned widths."""
    drafts = model.drafter.model.config.drafts if model.drafter is not None else 3
    wanted = {
        "off": "off",
        "three-token chain": "chain:4",
        "full-block chain": f"chain:{drafts + 1}",
        "fixed tree": "tree:8",
        "cost-model width": "sized",
        WHOLE: "adaspark",
        "adaspark without text": "textless",
        **{f"pinned at {width}": f"pinned:{width}" for width in PINNED},
    }
    return dict(zip(wanted, parse_arms(model, ",".join(wanted.values()), None), strict=True))


def measure(
    model: Model,
    conversations: Sequence[Conversation],
    params: SamplingParams,
    on_reply: Callable[[Conversation], None] = lambda conversation: None,
) -> dict[str, Any]:
    """All arms on the same prompts, interleaved: `bench decode`'s summary, and both tables."""
    arms = arms_of(model)
    run(model, list(arms.values()), conversations, params, on_reply)
    sources = {conversation.id: conversation.source for conversation in conversations}
    result = summary(model, list(arms.values()), {"limit": len(conversations), "max_tokens": params.max_tokens})
    for name, row in zip(arms, result["arms"], strict=True):
        row["arm"] = name
    return {
        **result,
        "pinned": [_pinned(arms, band) for band in _bands(arms[WHOLE])],
        "additions": _additions(arms, sources),
    }


def compare(arm: Arm, base: Arm, keys: Sequence[Key]) -> dict[str, Any] | None:
    """Ratio of decode speeds over replies that looped in neither; None where there are none."""
    kept = [key for key in keys if key in arm.speeds and key not in arm.looped and key not in base.looped]
    if not kept:
        return None
    ratios = [arm.speeds[key] / base.speeds[key] for key in kept]
    mean, low, high = geometric_mean_interval(ratios, [name for name, _ in kept])
    return {"replies": len(kept), "ratio": mean, "low": low, "high": high}


def _bands(arm: Arm) -> list[tuple[str, list[Key]]]:
    """All replies, and those of each context band: bit length of the prompt and half the reply."""
    bands: dict[int, list[Key]] = {}
    for key, context in arm.contexts.items():
        bands.setdefault(context.bit_length(), []).append(key)
    named = [(f"{1 << (bits - 1)} to {(1 << bits) - 1}", keys) for bits, keys in sorted(bands.items())]
    return [("all", list(arm.contexts)), *named]


def _pinned(arms: dict[str, Arm], band: tuple[str, list[Key]]) -> dict[str, Any]:
    """One line of Table 3: every pinned width over the policy, and the policy over the best of them."""
    name, keys = band
    widths = {width: compare(arms[f"pinned at {width}"], arms[WHOLE], keys) for width in PINNED}
    known = {width: one["ratio"] for width, one in widths.items() if one is not None}
    best = max(known, key=known.__getitem__) if known else None
    against = None if best is None else compare(arms[WHOLE], arms[f"pinned at {best}"], keys)
    return {"context": name, "widths": widths, "best": best, "adaspark_over_best": against}


def _additions(arms: dict[str, Arm], sources: dict[str, str]) -> list[dict[str, Any]]:
    """Table 6: each arm over plain decoding, over all replies and by source; and the whole over two others."""
    rows = []
    for name, arm in arms.items():
        if name.startswith("pinned"):
            continue
        keys = list(arm.speeds)
        by_source = {
            source: compare(arm, arms["off"], [key for key in keys if sources[key[0]] == source])
            for source in sorted(set(sources.values()))
        }
        rows.append({"arm": name, "all": compare(arm, arms["off"], keys), "sources": by_source})
    for base in ("three-token chain", "adaspark without text"):
        rows.append({"arm": f"adaspark over {base}", "all": compare(arms[WHOLE], arms[base], list(arms[base].speeds))})
    return rows


def tables(result: dict[str, Any]) -> str:
    """Markdown of both tables."""
    lines = [
        "Pinned widths over adaspark (above 1 is faster), by the context of a reply:\n",
        "| context | replies | " + " | ".join(map(str, PINNED)) + " | best | adaspark / best |",
        "|---|---:|" + "---:|" * len(PINNED) + "---:|---|",
    ]
    for row in result["pinned"]:
        cells = [f"{one['ratio']:.3f}" if one else "" for one in row["widths"].values()]
        against = row["adaspark_over_best"]
        ends = [row["context"], str(against["replies"] if against else 0)], [str(row["best"] or ""), _interval(against)]
        lines.append(f"| {' | '.join([*ends[0], *cells, *ends[1]])} |")
    names = list(result["additions"][0]["sources"])
    lines += [
        "\nOver plain decoding, each line adding to the one above; by source:\n",
        "| arm | all replies | " + " | ".join(names) + " |",
        "|---|---|" + "---:|" * len(names),
    ]
    for row in result["additions"]:
        by_source = [row["sources"][name] if "sources" in row else None for name in names]
        cells = [f"{one['ratio']:.3f}" if one else "" for one in by_source]
        lines.append(f"| {row['arm']} | {_interval(row['all'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(one: dict[str, Any] | None) -> str:
    return "" if one is None else f"{one['ratio']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"
