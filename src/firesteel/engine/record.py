"""A round as one line of JSON: what `--trace` writes and `firesteel explain` reads."""

from __future__ import annotations

import json
from typing import Any, Final, TextIO

import numpy as np

from firesteel.policy.base import Policy
from firesteel.rounds import RoundReport, RoundView, VerifyOutcome
from firesteel.tree import Source, TokenTree

SOURCES: Final = {"pick": Source.PICK, "sibling": Source.SIBLING, "ngram": Source.NGRAM}


def to_json(report: RoundReport, policy: Policy) -> str:
    """One line: what the round did, and what its policy says of it. Before the policy has learned from the report."""
    line = {
        "policy": policy.name,
        "rows": report.rows,
        "draft_ms": round(report.draft_ms, 4),
        "verify_ms": round(report.verify_ms, 4),
        "other_ms": round(report.other_ms, 4),
        "first": report.first,
        "requests": [
            _request(*one) for one in zip(report.views, report.candidates, report.trees, report.outcomes, strict=True)
        ],
    }
    if facts := policy.facts(report):
        line["facts"] = facts
    return json.dumps(line, allow_nan=False, separators=(",", ":"))


def _request(view: RoundView, candidates: TokenTree, tree: TokenTree, outcome: VerifyOutcome) -> dict[str, Any]:
    """One request's part: `sources` holds, per source, the rows verified and those of them accepted."""
    kept = tree.sources[outcome.path]
    return {
        "id": view.request_id,
        "context": view.context,
        "candidates": candidates.width - 1,
        "width": tree.width,
        "expected": round(float(tree.survival[1:].sum()), 4),
        "accepted": len(outcome.path) - 1,
        "sources": {
            name: [int(np.count_nonzero(tree.sources == source)), int(np.count_nonzero(kept == source))]
            for name, source in SOURCES.items()
        },
    }


class Trace:
    """Writes every round it is given to a text file, with what `policy`, the engine's, says of it."""

    def __init__(self, file: TextIO, policy: Policy) -> None:
        self._file, self._policy = file, policy

    def __call__(self, report: RoundReport) -> None:
        """Append one line."""
        print(to_json(report, self._policy), file=self._file)
