"""What decided a round of AdaSpark, in numbers for a trace.

All of it is computed when it is asked for, from what the policy holds anyway: between `grow` and `learn` costs, gains,
rates and weights are what they were when the round was decided. A policy that nobody traces pays for nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from firesteel.accept.base import labels_of
from firesteel.accept.guard import log_loss
from firesteel.accept.multinomial import Multinomial
from firesteel.candidates import Candidates
from firesteel.cost.online import OnlineCost
from firesteel.policy.chooser import Chooser, Growth
from firesteel.rounds import VerifyOutcome
from firesteel.tree import FloatArray, IntArray


def widths(
    cost: OnlineCost, chooser: Chooser, growth: Growth, held: int | None, fixed_ms: float, rows: int
) -> dict[str, Any]:
    """The offered widths side by side, and what their values rest on.

    Args:
        growth: of all candidates.
        held: rows of the incumbent.
        fixed_ms: what a round takes beside its verify.
        rows: of the verify.

    Returns:
        band: bit lengths of the context and of the batch.
        rate: rho, tokens per millisecond of the band; None while it has none.
        gains: four, of drafted and of the text's rows above the reference width and below it.
        held: the argument.
        fixed_ms: the argument.
        price_ms: what the verify of `rows` rows was expected to take; None where that had no price yet.
        offered: per width `rows`, `verify_ms`, `S` (expected accepted rows), `tokens` (with the gains) and `V`: Eq. 7,
            or tokens per millisecond while the band has no rate.
        widened: whether the rule takes a narrower width with the text's candidates priced at zero; None if there are
            none, or no widths.
    """
    priced = cost.ladder.priced()
    offered = priced[priced >= growth.requests]
    if len(offered) and offered[-1] > growth.available:
        offered = np.append(offered[: np.searchsorted(offered, growth.available)], growth.available)
    verify_ms, extra = cost.verify_ms(offered, growth.context), offered - growth.requests
    tokens = chooser.expected(growth)[extra]
    ms, rate = fixed_ms + verify_ms, chooser.rates.rate(growth.band)
    widened = None
    if len(offered) and growth.of_text.any():
        drafted = growth.survival[~growth.of_text]
        without = chooser.expected(replace(growth, survival=drafted, of_text=np.zeros(len(drafted), np.bool_)))
        best = chooser.best(offered, tokens, ms, rate, held)
        widened = best > chooser.best(offered, without[np.minimum(extra, len(drafted))], ms, rate, held)
    price = float(cost.verify_ms([rows], growth.context)[0])
    sums = np.concatenate([[0.0], growth.survival.cumsum()])
    return {
        "band": list(growth.band),
        "rate": None if rate is None else round(rate, 6),
        "gains": _rounded([gain.at(growth.context) for gain in chooser.gains]),
        "held": held,
        "fixed_ms": round(fixed_ms, 4),
        "price_ms": round(price, 4) if np.isfinite(price) else None,
        "offered": {
            "rows": offered.tolist(),
            "verify_ms": _rounded(verify_ms),
            "S": _rounded(sums[extra]),
            "tokens": _rounded(tokens),
            "V": _rounded(tokens / ms if rate is None else tokens - rate * ms),
        },
        "widened": widened,
    }


def labelled(
    acceptance: Multinomial,
    grown: Sequence[Candidates],
    placed: Sequence[IntArray],
    outcomes: Sequence[VerifyOutcome],
) -> list[dict[str, Any]]:
    """Per request, what the target said of its candidates.

    Args:
        grown: of each request.
        placed: rows of them that were verified, per request.

    Returns:
        agreed: rows verified and rows accepted, of those that drafter and text both propose.
        loss: labelled rows, and the log loss of the fitted and of the head-based price summed over them (Table 2),
            neither of which has learned from them yet.
    """
    facts = []
    for one, rows, outcome in zip(grown, placed, outcomes, strict=True):
        kept = rows[outcome.path]
        loss = [0, 0.0, 0.0]
        if one.tree.width > 1:
            labels = labels_of(one, kept, outcome.wanted)
            prices = acceptance.fitted(one), acceptance.by_head(one)
            losses = [round(log_loss(q[labels.rows], labels.right), 5) for q in prices]
            loss = [len(labels.rows), *losses]
        facts.append({"agreed": [int(one.agreed[rows].sum()), int(one.agreed[kept].sum())], "loss": loss})
    return facts


def _rounded(values: FloatArray | list[float]) -> list[float]:
    rounded: list[float] = np.round(values, 5).tolist()
    return rounded
