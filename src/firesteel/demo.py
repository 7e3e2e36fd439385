"""The first minute: one reply decoded plainly and speculatively, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from firesteel.display import SideBySide, comparison
from firesteel.engine.engine import Engine
from firesteel.engine.request import Request
from firesteel.model import Model
from firesteel.sampling import SamplingParams


@dataclass(frozen=True)
class Prompt:
    """A prompt of the demo; `chat` goes through the chat template."""

    title: str
    text: str
    chat: bool


PROMPTS = (
    Prompt(
        "Text that repeats itself: drafts come from the text's own past", "alpha beta gamma delta epsilon\n" * 6, False
    ),
    Prompt("Prose: little to copy, so speculation steps back", "Explain why the sky is blue in two sentences.", True),
)


@dataclass(frozen=True)
class Comparison:
    """One prompt decoded twice."""

    plain: Request
    speculative: Request

    @property
    def identical(self) -> bool:
        """Whether both gave the same tokens."""
        return self.plain.output == self.speculative.output

    @property
    def ratio(self) -> float:
        """Decode speed of the speculative text over that of the plain text."""
        return speed(self.speculative) / speed(self.plain)


def speed(request: Request) -> float:
    """Decode tokens per second."""
    return len(request.output) / request.timing.decode_s


def compare(
    model: Model, ids: Sequence[int], params: SamplingParams, engine: Engine, console: Console | None = None
) -> Comparison:
    """Decode plainly, then with `engine`; on a console both texts grow side by side."""
    plain_engine = model.engine("off")
    # The first forwards pay for what all later ones use: buffers, pages, caches.
    model.complete(ids, SamplingParams(temperature=0.0, max_tokens=2), plain_engine)
    if console is None:
        return Comparison(model.complete(ids, params, plain_engine), model.complete(ids, params, engine))
    with SideBySide(console, "plain", f"speculative ({engine.policy.name}, {engine.drafter.name})") as panes:
        plain = model.complete(ids, params, plain_engine, lambda new: panes.write(0, new))
        speculative = model.complete(ids, params, engine, lambda new: panes.write(1, new))
    result = Comparison(plain, speculative)
    console.print()
    console.print(comparison(plain, speculative))
    console.print(f"identical: {'yes' if result.identical else 'NO'}    ratio: {result.ratio:.2f}")
    return result
