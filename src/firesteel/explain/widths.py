"""Which widths ran, and how one was chosen: Figure 8 (AdaSpark §4.5) and a round in full."""

from __future__ import annotations

from collections import defaultdict

from firesteel.explain.cost import learned_widths
from firesteel.explain.parts import Part, Table, chosen, needs_adaspark, number, share
from firesteel.explain.svg import Plot, Series
from firesteel.explain.trace import Round, Trace


def figure_8(trace: Trace) -> Part:
    """Share of rounds at each width, and what these rounds gave."""
    by_width: defaultdict[int, list[Round]] = defaultdict(list)
    for one in trace.rounds:
        if one.chosen:
            by_width[one.rows].append(one)
    widths, total = sorted(by_width), sum(map(len, by_width.values()))
    rows = []
    for width in widths:
        rounds = by_width[width]
        requests, timed = sum(len(one.requests) for one in rounds), [one.ms for one in rounds if not one.first]
        tokens = sum(one.tokens for one in rounds)
        ms = number(sum(timed) / len(timed)) if timed else number(None)
        rows.append([str(width), str(len(rounds)), share(len(rounds), total), number(tokens / requests), ms])
    words = [
        "How often each number of rows was verified, rounds that measured a width left out. One row per request is "
        "plain decoding. Tokens are those that a request gained in a round; first rounds of a request have no time."
    ]
    if trace.facts:
        learned = ", ".join(map(str, learned_widths(trace))) or "none yet"
        words.append(f"Widths that the cost model had learned and offered: {learned}.")
    shares = [100.0 * len(by_width[width]) / total for width in widths]
    bars = Series("bars", list(range(len(widths))), shares)
    plot = Plot("Figure 8: share of rounds by rows", "rows verified", "% of rounds", [bars], names=[*map(str, widths)])
    head = ["rows", "rounds", "share", "tokens per round", "ms per round"]
    return Part("Figure 8: share of rounds at each width", words, plot=plot, table=Table(head, rows))


def decision(trace: Trace) -> Part:
    """The last round that had a choice, width by width."""
    title = "One decision: the last round that had a choice"
    found = [(one, facts) for one, facts in chosen(trace) if len(facts.offered.rows) > 1]
    if not trace.facts:
        return needs_adaspark(title, "what each width would have cost and earned")
    if not found:
        return Part(title, ["No round of this trace had two widths to choose from."])
    one, facts = found[-1]
    offered = facts.offered
    rows = []
    for width, verify_ms, expected, tokens, value in zip(
        offered.rows, offered.verify_ms, offered.S, offered.tokens, offered.V, strict=True
    ):
        ms = facts.fixed_ms + verify_ms
        numbers = [number(expected), number(tokens), number(ms), number(tokens / ms, 4), number(value, 4)]
        rows.append([str(width), *numbers])
    worth = "tokens per ms, since this band of contexts has no rate yet"
    if facts.rate is not None:
        worth = f"tokens less what the time is worth, at {facts.rate:.4f} tokens per ms, the rate of its band (Eq. 7)"
    held = "" if facts.held is None else f" {facts.held} rows were held before it, and stay unless clearly beaten."
    words = [
        "S is how many rows the target should accept; tokens are what the round should commit, with the gains that "
        f"marginal rows have proved; V is {worth}. The highest V wins.{held} The round verified {one.rows} rows and "
        f"committed {one.tokens} tokens in {one.ms:.2f} ms."
    ]
    return Part(title, words, table=Table(["rows", "S", "tokens", "ms", "tokens per ms", "V"], rows))
