"""The page of `bench peers`: who decodes how fast, the ratios, and the milliseconds behind them."""

from __future__ import annotations

from typing import Any

METHOD = """\
Tokens per second on the client's clock: from the arrival of the first tokens to that of the last, over the tokens that
came meanwhile; greedy, one request at a time, arms interleaved reply by reply in an order that rotates. Replies that
ended in a repetition loop are left out, and counted. Ratios are geometric means over replies, intervals 95% bootstraps
over conversations.

| arm | what runs |
|---|---|
| `llama` | llama.cpp's server, over HTTP on the same machine |
| `llama-dspark` | the same with `--spec-type draft-dspark`: three tokens a round, its default, from the same drafter |
| `transformers` | `generate()` in this process, in the row's precision; it has no twin of int8 |
| `transformers-lookup` | the same with `prompt_lookup_num_tokens=10` |
| `off` | firesteel in this process, without speculation |
| `chain:4` | three drafted tokens a round, as `llama-dspark` |
| `adaspark` | firesteel's policy, which begins knowing nothing; besides the drafter it has the text's n-grams |

All run the same weights: bf16 against bf16, int8 against llama.cpp's Q8_0, the drafter in the same precision. llama.cpp
keeps K/V in fp16, its default. Of its settings only these differ from its defaults: `top_k` 1, which spares its sampler
the vocabulary, no prompt cache, one slot, and those named below.
"""


def peers_tables(result: dict[str, Any]) -> str:
    """Markdown: per precision arms, ratios, a round's milliseconds, and what differs where we are not faster."""
    return "\n\n".join(
        part
        for precision in result["precisions"]
        for part in (
            f"## {precision['dtype']}" + (" against Q8_0" if precision["dtype"] == "int8" else ""),
            _arms(precision["arms"]),
            _ratios(precision["ratios"]),
            _rounds(precision["arms"]),
            _explained(precision),
        )
        if part
    )


def settings_lines(settings: dict[str, Any]) -> str:
    """Markdown: what was run, one line each."""
    return "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in settings.items())


def _arms(arms: list[dict[str, Any]]) -> str:
    lines = [
        "| arm | engine | replies | looped | as plain | tokens/s | server's own clock | tokens/round |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for arm in arms:
        cells = [arm["arm"], arm["engine"], arm["replies"], arm["looped"], _cell(arm["same_as_plain"], "d")]
        cells += [
            _cell(arm["tokens_per_s"], ".1f"),
            _cell(arm["own_tokens_per_s"], ".1f"),
            _cell(arm["tokens_per_round"], ".2f"),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "\n`as plain`: replies that are, to the letter, those of the same engine's plain arm."])


def _ratios(ratios: list[dict[str, Any]]) -> str:
    """One line per arm, one column per arm it is compared with."""
    others = list(dict.fromkeys(ratio["to"] for ratio in ratios))
    if not others:
        return ""
    cells = {(ratio["arm"], ratio["to"]): _interval(ratio) for ratio in ratios}
    lines = ["| times as fast as | " + " | ".join(others) + " |", "|---|" + "---|" * len(others)]
    for arm in dict.fromkeys(ratio["arm"] for ratio in ratios):
        lines.append(f"| {arm} | " + " | ".join(cells.get((arm, other), "") for other in others) + " |")
    return "\n".join(lines)


def _rounds(arms: list[dict[str, Any]]) -> str:
    lines = [
        "Milliseconds of a round (means): the drafter, the target's forward, and everything else; where an engine does",
        "not say, its forward is in the last.\n",
        "| arm | rounds | round | draft | verify | everything else | per token |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for arm in arms:
        parts = arm["parts_ms"]
        cells = [
            arm["arm"],
            arm["rounds"],
            _cell(arm["round_ms"]),
            _cell(parts.get("draft")),
            _cell(parts.get("verify")),
        ]
        cells += [_cell(_rest(arm)), _cell(_per_token(arm))]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _explained(precision: dict[str, Any]) -> str:
    """A line for every ratio to a peer that is not surely above 1; a plain arm answers to plain arms only."""
    arms = {arm["arm"]: arm for arm in precision["arms"]}
    lines = []
    for ratio in precision["ratios"]:
        ours, theirs = arms[ratio["arm"]], arms[ratio["to"]]
        plain = ratio["arm"] == "off" and ratio["to"] not in ("llama", "transformers")
        if ours["engine"] == theirs["engine"] or plain or ratio["ratio"] is None or ratio["ratio_low"] > 1:
            continue
        lines.append(f"- `{ours['arm']}` against `{theirs['arm']}`, {_interval(ratio)}: {_difference(ours, theirs)}")
    return "\n".join(["Where firesteel is not faster, or not surely:\n", *lines]) if lines else ""


def _difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    if not ours["rounds"] or not theirs["rounds"]:
        return "no rounds to compare."
    text = (
        f"{_per_token(ours):.2f} ms a token against {_per_token(theirs):.2f}; a round takes {ours['round_ms']:.2f} ms "
        f"against {theirs['round_ms']:.2f} and brings {ours['tokens_per_round']:.2f} tokens against "
        f"{theirs['tokens_per_round']:.2f}. "
    )
    mine, other = (arm["parts_ms"].get("draft", 0.0) for arm in (ours, theirs))
    rest = f"the rest {ours['round_ms'] - mine:.2f} against {theirs['round_ms'] - other:.2f}"
    return text + f"Of a round the drafter takes {mine:.2f} ms against {other:.2f}, {rest}."


def _rest(arm: dict[str, Any]) -> float | None:
    return (
        None
        if arm["round_ms"] is None
        else arm["round_ms"] - sum(ms for name, ms in arm["parts_ms"].items() if name in ("draft", "verify"))
    )


def _per_token(arm: dict[str, Any]) -> float | None:
    return 1e3 / arm["tokens_per_s"] if arm["tokens_per_s"] else None


def _interval(ratio: dict[str, Any]) -> str:
    if ratio["ratio"] is None:
        return ""
    return f"{ratio['ratio']:.2f} [{ratio['ratio_low']:.2f}, {ratio['ratio_high']:.2f}]"


def _cell(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)
