"""A round as one line of JSON: what `--trace` writes."""

from __future__ import annotations

import json
from typing import TextIO

from firesteel.rounds import RoundReport


def to_json(report: RoundReport) -> str:
    """One line: times in milliseconds, and per request its width, what was accepted and the tokens' prices."""
    return json.dumps(
        {
            "rows": report.rows,
            "draft_ms": round(report.draft_ms, 4),
            "verify_ms": round(report.verify_ms, 4),
            "other_ms": round(report.other_ms, 4),
            "first": report.first,
            "requests": [
                {
                    "id": view.request_id,
                    "context": view.context,
                    "candidates": candidates.width - 1,
                    "width": tree.width,
                    "expected": round(float(tree.survival[1:].sum()), 4),
                    "accepted": len(outcome.path) - 1,
                }
                for view, candidates, tree, outcome in zip(
                    report.views, report.candidates, report.trees, report.outcomes, strict=True
                )
            ],
        }
    )


class Trace:
    """Writes every round it is given to a text file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, report: RoundReport) -> None:
        """Append one line."""
        print(to_json(report), file=self._file)
