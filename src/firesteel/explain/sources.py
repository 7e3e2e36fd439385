"""Where accepted tokens come from: Table 7 (AdaSpark §4.3)."""

from __future__ import annotations

from firesteel.explain.parts import Part, Table, chosen, share
from firesteel.explain.trace import Trace


def table_7(trace: Trace) -> Part:
    """Verified and accepted rows by source, and how often the text's candidates made a verify wider."""
    requests = [one for round_ in trace.rounds for one in round_.requests]
    text = _sum([one.ngram for one in requests])
    drafted = _sum([pair for one in requests for pair in (one.pick, one.sibling)])
    names = [("drafter, agreed with the text or not", drafted), ("text only", text)]
    if trace.facts:
        agreed = _sum([pair for _, facts in trace.facts for pair in facts.agreed])
        alone = drafted[0] - agreed[0], drafted[1] - agreed[1]
        names = [("drafter only", alone), ("both agreed", agreed), ("text only", text)]
    all_rows, all_accepted = drafted[0] + text[0], drafted[1] + text[1]
    rows = [
        [name, str(verified), share(verified, all_rows), str(kept), share(kept, all_accepted), share(kept, verified)]
        for name, (verified, kept) in [*names, ("all", (all_rows, all_accepted))]
    ]
    words = [
        "Rows beside the anchors, by who proposed them: the drafter, the request's own text (n-grams), or both. An "
        "accepted row is a token of the reply that cost no pass of its own."
    ]
    if trace.facts:
        words.append(_widened(trace))
    else:
        words.append(
            "Which rows both proposed, and which rounds the text's candidates widened, need a trace of adaspark."
        )
    head = ["proposed by", "verified", "of all verified", "accepted", "of all accepted", "acceptance"]
    return Part("Table 7: rows and accepted tokens by source", words, table=Table(head, rows))


def _widened(trace: Trace) -> str:
    asked = [facts.widened for _, facts in chosen(trace) if facts.widened is not None]
    if not asked:
        return "No round had candidates of the text alone and a choice of width."
    return (
        f"{len(asked)} rounds had candidates of the text alone and a choice of width; in {sum(asked)} of them "
        f"({share(sum(asked), len(asked))}) the same rule takes a narrower width with these priced at zero."
    )


def _sum(pairs: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(verified for verified, _ in pairs), sum(kept for _, kept in pairs)
