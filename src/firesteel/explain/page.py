"""A trace as a page: its parts in the order of a reader's questions, and the page as HTML and as Markdown."""

from __future__ import annotations

from html import escape

from firesteel.explain.acceptance import figure_4, figure_10, table_2
from firesteel.explain.cost import figure_3, figure_9, table_1
from firesteel.explain.parts import Page, Part, Table
from firesteel.explain.sources import table_7
from firesteel.explain.summary import summary
from firesteel.explain.svg import svg
from firesteel.explain.trace import Trace
from firesteel.explain.widths import decision, figure_8

PARTS = (summary, figure_8, decision, figure_3, table_1, figure_9, figure_10, table_2, figure_4, table_7)

STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --dim: #667; --paper: #fff; --rule: #dde;
  --c0: #2563a8; --c1: #c2571a; --c2: #2b8a57; --c3: #8250b4; --c4: #a8326e; --c5: #777; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --dim: #9aa0ab; --paper: #15181c; --rule: #31363e;
  --c0: #6aa9ee; --c1: #f0985a; --c2: #5cc48e; --c3: #bb96e8; --c4: #e87fb0; --c5: #999; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid var(--rule);
  padding-top: 1rem; }
p, li { max-width: 42rem; } .about { color: var(--dim); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; margin: 0.8rem 0; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; } th { font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
details summary { cursor: pointer; color: var(--dim); }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--dim); }
.grid { stroke: var(--rule); fill: none; } .axis { stroke: var(--dim); fill: none; }
.dots { fill: var(--c); fill-opacity: 0.75; } .hollow { fill: none; stroke: var(--c); stroke-width: 1.3; }
.line { stroke: var(--c); stroke-width: 1.6; fill: none; } .bars { fill: var(--c); }
.dashed { stroke: var(--c); fill: none; stroke-dasharray: 5 4; }
"""


def page(trace: Trace) -> Page:
    """All parts of a trace."""
    policies = ", ".join(sorted({one.policy for one in trace.rounds}))
    return Page(
        f"Decoding, explained: {trace.file.name}",
        f"A trace of the policy {policies}. Figures and tables are numbered as those of the AdaSpark paper that they "
        "follow, and are of this trace alone.",
        [part(trace) for part in PARTS],
    )


def to_html(page: Page) -> str:
    """One file that needs nothing beside it."""
    body = "\n".join(_html_part(part) for part in page.parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(page.title)}</h1>\n<p class="about">{escape(page.about)}</p>\n{body}\n</body>\n</html>\n'
    )


def to_markdown(page: Page) -> str:
    """The same without the plots: the tables hold their numbers."""
    lines = [f"# {_plain(page.title)}", _plain(page.about)]
    for part in page.parts:
        lines += [f"## {part.title}", *map(_plain, part.words)]
        if part.points:
            lines.append("\n".join(f"- {_plain(point)}" for point in part.points))
        if part.table is not None:
            lines.append(markdown_table(part.table))
    return "\n\n".join(lines) + "\n"


def markdown_table(table: Table) -> str:
    """A table; numbers to the right."""
    rows = [table.head, ["---", *["---:"] * (len(table.head) - 1)], *table.rows]
    return "\n".join(f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows)


def _html_part(part: Part) -> str:
    lines = ["<section>", f"<h2>{escape(part.title)}</h2>"]
    lines += [f"<p>{escape(words)}</p>" for words in part.words]
    if part.points:
        lines += ["<ul>", *(f"<li>{escape(point)}</li>" for point in part.points), "</ul>"]
    if part.plot is not None:
        lines.append(svg(part.plot))
    if part.table is not None:
        table = _html_table(part.table)
        folded = f"<details><summary>Its numbers</summary>\n{table}\n</details>"
        lines.append(table if part.plot is None else folded)
    return "\n".join([*lines, "</section>"])


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    rows = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'


def _plain(text: str) -> str:
    """Words that Markdown takes as they are; a name may hold anything."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
