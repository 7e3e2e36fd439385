"""What a user wants to know first, in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median

from firesteel.explain.parts import Part, Table, number, share
from firesteel.explain.trace import Round, Trace

ENOUGH = 3  # plain rounds of one batch size before they are compared with
EVEN = 0.02  # a ratio this near to 1 is no difference
REASONS = {
    "chosen": "{} chose among widths by their value",
    "measured": "{} measured what a width costs",
    "alone": "{} had nothing to verify beside the anchor",
    "pinned": "{} had a width that was pinned",
}


def summary(trace: Trace) -> Part:
    """Tokens per round, time per token and where it goes, which widths and why, whether it paid and rested."""
    points = [*_tokens(trace), *_paid(trace), *_widths(trace), *_rests(trace), *_guard(trace)]
    words = (
        ["One line of the trace lacks its end and was left out: its writer was stopped."] if trace.unfinished else []
    )
    return Part("Summary", words, points, table=_time(trace.timed))


def plain_ms(trace: Trace) -> dict[int, float]:
    """By batch size, what a token takes in a plain round: the median over the trace's own."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for one in trace.timed:
        if one.plain:
            found[len(one.requests)].append(one.ms / one.tokens)
    return {size: median(some) for size, some in found.items() if len(some) >= ENOUGH}


def _tokens(trace: Trace) -> list[str]:
    requests = len({one.id for round_ in trace.rounds for one in round_.requests})
    tokens, shares = sum(one.tokens for one in trace.rounds), sum(len(one.requests) for one in trace.rounds)
    points = [
        f"{_count(requests, 'request')}, {_count(len(trace.rounds), 'round')}, {_count(tokens, 'token')}: "
        f"{tokens / shares:.2f} tokens per round and request. Plain decoding has 1."
    ]
    if shares > len(trace.rounds):
        points.append(f"A round served {shares / len(trace.rounds):.1f} requests on average.")
    return points


def _paid(trace: Trace) -> list[str]:
    timed = trace.timed
    if not timed:
        return ["Only first rounds of requests, which run cold: times say nothing."]
    per_token = sum(one.ms for one in timed) / sum(one.tokens for one in timed)
    points = [f"A token took {per_token:.2f} ms on average, all of the rounds' time shared out."]
    plain = plain_ms(trace)
    compared = [one for one in timed if len(one.requests) in plain]
    if all(one.plain for one in timed):
        return [*points, "All rounds were plain: nothing was speculated."]
    if not compared:
        return [*points, "Whether speculation paid cannot be told: the trace has hardly a plain round to compare with."]
    as_plain = sum(one.tokens * plain[len(one.requests)] for one in compared)
    ratio = as_plain / sum(one.ms for one in compared)
    count = sum(one.plain and len(one.requests) in plain for one in timed)
    verdict = "Speculation paid"
    if abs(ratio - 1.0) <= EVEN:
        verdict = "Speculation made no difference"
    elif ratio < 1.0:
        verdict = "Speculation did not pay"
    return [
        *points,
        f"{verdict}: these tokens would have taken {ratio:.2f} times as long plainly, by the median "
        f"of the trace's {_count(count, 'plain round')} ({_list(plain)} ms per token). They ran at other contexts than "
        "the rest; `firesteel generate --compare` measures it.",
    ]


def _time(timed: list[Round]) -> Table | None:
    """Where a round's milliseconds go."""
    if not timed:
        return None
    total = sum(one.ms for one in timed)
    parts = [
        ("draft", sum(one.draft_ms for one in timed)),
        ("verify", sum(one.verify_ms for one in timed)),
        ("host: everything else", sum(one.other_ms for one in timed)),
        ("all", total),
    ]
    rows = [[name, number(ms / len(timed)), share(ms, total)] for name, ms in parts]
    return Table(["a round's time", "ms per round", "share"], rows)


def _widths(trace: Trace) -> list[str]:
    counts, total = Counter(one.rows for one in trace.rounds), len(trace.rounds)
    most = ", ".join(f"{rows} in {share(count, total)}" for rows, count in counts.most_common(4))
    points = [f"Rows verified: {most} of the rounds" + (" and others." if len(counts) > 4 else ".")]
    if trace.facts:
        reasons = Counter(facts.reason for _, facts in trace.facts)
        why = [REASONS.get(reason, "{} were " + reason).format(count) for reason, count in reasons.most_common()]
        points.append(f"Why: of {_count(len(trace.facts), 'round')}, {'; '.join(why)}.")
    else:
        names = ", ".join(sorted({one.policy for one in trace.rounds}))
        points.append(f"Why: the policy is {names}, which says nothing of its choices.")
    return points


def _rests(trace: Trace) -> list[str]:
    """Whether drafting rested: which rounds did not draft because drafts had not paid."""
    if not trace.facts:
        return []
    states = [facts.rest_rounds if facts.rests else -1 for _, facts in trace.facts]
    rested, begun = sum(state >= 0 for state in states), sum(state == 0 for state in states)
    if not rested:
        return ["Drafting never rested."]
    ordered = sum(now > 0 and now != before for before, now in zip([-1, *states], states, strict=False))
    said = f"{rested} of {_count(len(states), 'round')} ran without a draft to rest or to compare"
    if begun:
        said += f", {begun} of them at the start"
    if not ordered:
        return [said + ". No rest was ordered: drafts paid, or there was no drafter."]
    return [f"{said}. Drafts did not pay for themselves {_count(ordered, 'time')}, and rested after each."]


def _guard(trace: Trace) -> list[str]:
    trees = [facts.trusts_fit for _, facts in trace.facts if any(count for count, _, _ in facts.loss)]
    if not trees:
        return []
    return [f"The fitted model of acceptance priced {share(sum(trees), len(trees))} of the rounds with candidates."]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _list(plain: dict[int, float]) -> str:
    if len(plain) == 1:
        return f"{next(iter(plain.values())):.2f}"
    return ", ".join(f"{ms:.2f} at {size} requests" for size, ms in sorted(plain.items()))
