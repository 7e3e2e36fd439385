"""`firesteel pairs`: which drafters are known for which targets."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.table import Table

from firesteel.options import AsJson, out, print_text


def pairs(as_json: AsJson = False) -> None:
    """List the targets whose drafter is found by itself, and where each pair is stated."""
    from firesteel.default_target import DEFAULT_TARGET
    from firesteel.models.drafters.pairs import PAIRS, Pair, drafter_for

    shipped = drafter_for(DEFAULT_TARGET)
    known = [*([Pair(DEFAULT_TARGET, shipped, "comes with firesteel")] if shipped else []), *PAIRS]
    if as_json:
        print_text(json.dumps([asdict(pair) for pair in known]) + "\n")
        return
    table = Table()
    for name in ("target", "drafter", "source"):
        table.add_column(name, overflow="fold")  # names are to be copied: never shortened
    for pair in known:
        table.add_row(pair.target, pair.drafter, pair.source)
    out.print(table)
