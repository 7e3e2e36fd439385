"""How far a run of self-play is, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from firesteel.train.conversations import Conversation

EVERY_S = 10.0


class Meter:
    """Counts conversations and the tokens of their replies; used in a `with`.

    Args:
        console: where to say it.
        total: conversations to come, or None.
        clock: seconds.
    """

    def __init__(self, console: Console, total: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._total, self._clock = console, total, clock
        self.conversations = self.reply_tokens = self._decoded = 0
        self._begun = self._said = clock()
        columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=total)

    def show(self, made: Iterable[Conversation], decoded: int) -> None:
        """Count what was made since the last call.

        Args:
            decoded: tokens decoded so far, those of user turns and of what was dropped too.
        """
        for conversation in made:
            self.conversations += 1
            self.reply_tokens += len(conversation.reply)
        self._decoded = decoded
        self._bar.update(self._task, completed=self.conversations, description=self.line)
        if not self._console.is_terminal and self._clock() - self._said >= EVERY_S:
            self._said = self._clock()
            self._console.print(self.line, highlight=False, soft_wrap=True)

    @property
    def line(self) -> str:
        """Conversations, reply tokens, and decoded tokens per second."""
        of = "" if self._total is None else f" of {self._total}"
        rate = self._decoded / max(self._clock() - self._begun, 1e-9)
        return f"{self.conversations}{of} conversations, {self.reply_tokens} reply tokens, {rate:.0f} tokens/s"

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
