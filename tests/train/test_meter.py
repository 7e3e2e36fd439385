"""What a run says of itself, by a scripted clock."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from firesteel.train.conversations import Conversation
from firesteel.train.meter import Meter


def test_without_a_terminal_a_line_every_ten_seconds() -> None:
    now = [100.0]
    said = io.StringIO()
    made = [Conversation(np.arange(9), 4, 0.0)]
    with Meter(Console(file=said), 7, clock=lambda: now[0]) as meter:
        for second in range(1, 26):
            now[0] = 100.0 + second
            meter.show(made if second % 5 == 0 else [], 30 * second)
    assert said.getvalue().splitlines() == [
        "2 of 7 conversations, 10 reply tokens, 30 tokens/s",
        "4 of 7 conversations, 20 reply tokens, 30 tokens/s",
    ]
    assert meter.line == "5 of 7 conversations, 25 reply tokens, 30 tokens/s"
