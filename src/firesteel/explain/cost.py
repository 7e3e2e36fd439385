"""What a verify takes: Figure 3, Table 1 and Figure 9 (AdaSpark §2.3, §3.2, §4.6)."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import numpy as np

from firesteel.explain.parts import NONE, Part, Table, band_name, chosen, number, share
from firesteel.explain.svg import Plot, Series
from firesteel.explain.trace import Round, Trace

ENOUGH = 3  # rounds of one width before a median of them says something; also the paper's measurements
SHOWN_BANDS = 3  # as many contexts as Table 1 has
SHOWN_ROUNDS = 160  # of Figure 9

Cell = tuple[int, int]  # band of the context, rows


def figure_3(trace: Trace) -> Part:
    """Verify time by width and context, and what the policy says it takes."""
    cells, prices = _cells(trace), _prices(trace)
    bands = sorted({band for band, _ in cells})
    rows = [
        [
            str(width),
            band_name(band),
            str(len(rounds)),
            number(median(_verify(rounds))),
            number(float(np.quantile(_verify(rounds), 0.15))),
            number(prices.get((band, width))),
        ]
        for (band, width), rounds in sorted(cells.items(), key=lambda item: (item[0][1], item[0][0]))
    ]
    series = []
    for colour, band in enumerate(_most_seen(cells)):
        widths = sorted(width for other, width in cells if other == band)
        medians = [median(_verify(cells[band, width])) for width in widths]
        series.append(Series("dots", widths, medians, f"{band_name(band)} tokens", colour))
        law = sorted((width, ms) for (other, width), ms in prices.items() if other == band)
        series.append(Series("line", [width for width, _ in law], [ms for _, ms in law], "", colour))
    words = [
        "What one pass of the target takes, by the rows that it verifies. Dots are medians of the rounds in a band of "
        "contexts; lines are what adaspark last took such a pass to cost there: its fitted law at its level of then.",
        "The paper pins every width at three contexts. Here the rounds ran at the widths that the policy wanted, so "
        f"some dots rest on few rounds; the plot has the bands with the most rounds, the table all {len(bands)}. Lines "
        "lie below the dots by design: the law is a low quantile (15%), and a width costs no more than a wider one.",
    ]
    if not prices:
        words.append("The lines need a trace of the policy adaspark.")
    head = ["rows", "context", "rounds", "median ms", "15% quantile ms", "last price ms"]
    plot = Plot("Figure 3: verify time by rows", "rows verified", "verify, ms", series)
    return Part("Figure 3: verify time by width and context", words, plot=plot, table=Table(head, rows))


def table_1(trace: Trace) -> Part:
    """T(c) = alpha + beta c of every width, over the medians of the bands."""
    cells = _cells(trace)
    bands = sorted(_most_seen(cells))
    rows = []
    for width in sorted({width for _, width in cells}):
        mine = {band: rounds for (band, other), rounds in cells.items() if other == width and len(rounds) >= ENOUGH}
        if not mine:
            continue
        at = [number(median(_verify(mine[band]))) if band in mine else NONE for band in bands]
        rows.append([str(width), *at, *_affine(list(mine.values()))])
    words = [
        "The law T(c) = alpha + beta c of Eq. 3, by least squares over the medians of all bands of contexts in which a "
        f"width ran {ENOUGH} times or more. Alpha is the part without context, beta what 1,000 tokens of context add. "
        "One band gives no slope, and two are met exactly. The policy's own law (Eq. 4) is of another form: Figure 3 "
        "has its prices."
    ]
    head = ["rows", *(f"T({band_name(band)})" for band in bands), "alpha ms", "beta ms per 1k", "max residual"]
    return Part("Table 1: the cost model", words, table=Table(head, rows))


def figure_9(trace: Trace) -> Part:
    """Measured verify time beside the estimate, round by round."""
    rounds = trace.timed
    shown = list(enumerate(rounds[:SHOWN_ROUNDS], start=1))
    measured = [one for one in rounds if not one.chosen]
    series = [
        Series("dots", *_points([(i, one) for i, one in shown if one.chosen]), "measured verify", 0),
        Series("hollow", *_points([(i, one) for i, one in shown if not one.chosen]), "to learn a width's cost", 1),
    ]
    series += _estimates(shown)
    words = [
        f"The first {len(shown)} rounds: what each verify took, and what the cost model expected of it. Hollow rounds "
        "had a width that was to be measured. First rounds of a request are left out: they run cold."
    ]
    top = None
    if shown:
        top = 1.5 * float(np.quantile([one.verify_ms for _, one in shown], 0.97))
        above = sum(one.verify_ms > top for _, one in shown)
        words += [f"{above} rounds above {top:.1f} ms are not in the plot."] if above else []
    if not trace.facts:
        words.append("The estimates need a trace of the policy adaspark.")
    plot = Plot("Figure 9: verify time of each round", "round", "verify, ms", series, top=top)
    halves = [rounds[: len(rounds) // 2], rounds[len(rounds) // 2 :]]
    table = Table(
        ["", "value"],
        [
            ["rounds", str(len(rounds))],
            ["of those to measure a width", str(len(measured))],
            ["share of all time in them", share(sum(one.ms for one in measured), sum(one.ms for one in rounds))],
            *(
                [f"median error of the estimate, {name} half", _error(half)]
                for name, half in zip(("first", "second"), halves, strict=True)
            ),
        ],
    )
    return Part("Figure 9: the cost model's estimate, round by round", words, plot=plot, table=table)


def learned_widths(trace: Trace) -> list[int]:
    """The priced widths at the end: every width that was offered as one of the table, and not cut to what there was."""
    found: set[int] = set()
    for one, facts in chosen(trace):
        available = len(one.requests) + sum(share.candidates for share in one.requests)
        found |= {width for width in facts.offered.rows if width < available}
    return sorted(found)


def _cells(trace: Trace) -> dict[Cell, list[Round]]:
    cells: defaultdict[Cell, list[Round]] = defaultdict(list)
    for one in trace.timed:
        cells[one.band, one.rows].append(one)
    return dict(cells)


def _prices(trace: Trace) -> dict[Cell, float]:
    """The last price of every width in every band, of widths that were in the table."""
    prices = {}
    for one, facts in trace.facts:
        for width, ms in zip(facts.offered.rows, facts.offered.verify_ms, strict=True):
            prices[one.band, width] = ms
        if facts.price_ms is not None:
            prices[one.band, one.rows] = facts.price_ms
    return prices


def _most_seen(cells: dict[Cell, list[Round]]) -> list[int]:
    """The bands with the most rounds, rising."""
    seen: defaultdict[int, int] = defaultdict(int)
    for (band, _), rounds in cells.items():
        seen[band] += len(rounds)
    return sorted(sorted(seen, key=lambda band: -seen[band])[:SHOWN_BANDS])


def _affine(groups: list[list[Round]]) -> list[str]:
    """alpha, beta per 1,000 tokens and the greatest residual, of one width's rounds by band."""
    if len(groups) < 2:
        return [NONE, NONE, NONE]
    contexts = np.array([np.mean([one.context for one in rounds]) for rounds in groups])
    ms = np.array([median(_verify(rounds)) for rounds in groups])
    beta, alpha = np.polyfit(contexts, ms, 1)
    residual = float((np.abs(alpha + beta * contexts - ms) / ms).max())
    return [number(float(alpha)), number(1000.0 * float(beta)), f"{residual:.1%}"]


def _error(rounds: list[Round]) -> str:
    errors = [
        abs(one.facts.price_ms - one.verify_ms) / one.verify_ms
        for one in rounds
        if one.facts and one.facts.price_ms is not None and one.chosen and one.verify_ms > 0.0
    ]
    return f"{median(errors):.1%}" if errors else NONE


def _estimates(shown: list[tuple[int, Round]]) -> list[Series]:
    """Lines through the estimates, broken where a width had none yet."""
    lines: list[list[tuple[int, float]]] = [[]]
    for i, one in shown:
        if one.facts is not None and one.facts.price_ms is not None:
            lines[-1].append((i, one.facts.price_ms))
        elif lines[-1]:
            lines.append([])
    names = ["estimate before it ran", *[""] * (len(lines) - 1)]
    return [
        Series("line", [i for i, _ in line], [ms for _, ms in line], name, 2)
        for name, line in zip(names, lines, strict=True)
        if line
    ]


def _points(shown: list[tuple[int, Round]]) -> tuple[list[int], list[float]]:
    return [i for i, _ in shown], [one.verify_ms for _, one in shown]


def _verify(rounds: list[Round]) -> list[float]:
    return [one.verify_ms for one in rounds]
