"""What a person sees while decoding: streamed text, and two texts side by side."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from firesteel.engine.request import Request


@dataclass
class Pane:
    """One of two texts that grow side by side."""

    title: str
    text: str = ""


class SideBySide:
    """Two panes, filled one after the other (each alone on the machine, so that its time is its own)."""

    def __init__(self, console: Console, left: str, right: str) -> None:
        self.panes = (Pane(left), Pane(right))
        self._live = Live(self._render(console.width), console=console, refresh_per_second=12, transient=False)
        self._width = console.width

    def __enter__(self) -> SideBySide:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.update(self._render(self._width), refresh=True)
        self._live.stop()

    def write(self, pane: int, text: str) -> None:
        """Append to a pane."""
        self.panes[pane].text += text
        self._live.update(self._render(self._width))

    def _render(self, width: int) -> Columns:
        half = max(30, width // 2 - 1)
        return Columns([Panel(Text(pane.text), title=pane.title, width=half) for pane in self.panes])


def comparison(plain: Request, speculative: Request) -> Table:
    """Tokens per second, tokens per round, and their ratio."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "tokens", "tokens/s", "tokens/round", "rows/round"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, request in (("plain", plain), ("speculative", speculative)):
        n, speculation = len(request.output), request.speculation
        table.add_row(
            name,
            str(n),
            f"{n / request.timing.decode_s:.1f}",
            f"{n / speculation.rounds:.2f}",
            f"{speculation.rows / speculation.rounds:.2f}",
        )
    return table


def summary_line(request: Request, policy: str, drafter: str) -> str:
    """One line under a streamed reply."""
    n, speculation = len(request.output), request.speculation
    if not speculation.rounds:
        return "nothing was decoded"
    return (
        f"{n} tokens, {n / request.timing.decode_s:.1f} tokens/s, {n / speculation.rounds:.2f} tokens/round "
        f"({policy}, {drafter}), finished by {request.finish_reason}"
    )
