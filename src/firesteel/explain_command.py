"""`firesteel explain`: what a trace of `generate --trace` says, in words, tables and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firesteel.errors import InvalidParameter
from firesteel.options import err, print_text


def explain(
    file: Annotated[Path, typer.Argument(help="A trace, as `generate --trace FILE` writes it.")],
    html: Annotated[Path | None, typer.Option(help="The page; by default FILE with the ending .html.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="The same tables as Markdown, without the plots.")] = None,
) -> None:
    """Say what a trace shows: what rounds cost and earned, which widths ran and why, whether speculation paid."""
    from firesteel.explain.page import page, to_html, to_markdown
    from firesteel.explain.trace import read
    from firesteel.paths import write_whole

    html = file.with_suffix(".html") if html is None else html
    pages = {html: to_html} | ({} if markdown is None else {markdown: to_markdown})
    for target in pages:
        if target.resolve() == file.resolve():
            raise InvalidParameter(f"{target} is the trace itself: name another file for the page")
    made = page(read(file))
    for target, render in pages.items():
        try:
            with write_whole(target) as whole:
                whole.write_text(render(made), encoding="utf-8")
        except OSError as error:
            raise InvalidParameter(f"cannot write {target}: {error.strerror}") from error
    summary = made.parts[0]
    print_text("\n".join([*summary.words, *summary.points]) + "\n")
    for target in pages:
        err.print(f"wrote {target}", markup=False, highlight=False, soft_wrap=True)
