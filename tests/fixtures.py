"""Prompts on the default target whose behaviour under speculation is known."""

from __future__ import annotations

from firesteel.model import Model

REP = "alpha beta gamma delta epsilon\n" * 6
COUNT = "".join(f"{i}: I will never miss any tokens.\n" for i in (1, 2, 3)) + "4:"
PROSE = "Explain why the sky is blue in two sentences."
COIN = "\n".join(f"coin: {side}" for side in ("heads", "tails", "heads", "tails", "tails", "heads")) + "\ncoin:"


def encoded(model: Model) -> dict[str, list[int]]:
    """The fixtures' token ids; F-prose through the chat template, the others as they are."""
    return {
        "F-rep": model.encode(REP),
        "F-count": model.encode(COUNT),
        "F-prose": model.encode_chat([{"role": "user", "content": PROSE}]),
        "F-coin": model.encode(COIN),
    }
