"""`firesteel eval`: how far a drafter's chains get with its target, through the engine itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from firesteel.bench.prompts import Conversation
from firesteel.engine.drafter import Drafter
from firesteel.engine.engine import Engine
from firesteel.engine.request import Request
from firesteel.errors import InvalidParameter
from firesteel.fit.scores import auc, brier, ece
from firesteel.model import Model
from firesteel.rounds import Draft, Plan, RoundReport
from firesteel.sampling import SamplingParams


@dataclass
class Tally:
    """Rounds of one source at one temperature.

    Fields:
        tokens, rounds: committed tokens, rounds; the prompt's pass is not a round.
        offered, reached, accepted: per draft position, rounds that drafted so far, of these rounds in which all
            before it were accepted, and of these rounds in which it was too.
        confidence, right: the confidence head's number for each reached draft, and whether it was accepted.
    """

    tokens: int = 0
    rounds: int = 0
    offered: np.ndarray = field(default_factory=lambda: np.zeros(64, np.int64))
    reached: np.ndarray = field(default_factory=lambda: np.zeros(64, np.int64))
    accepted: np.ndarray = field(default_factory=lambda: np.zeros(64, np.int64))
    confidence: list[float] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)

    def add(self, drafted: int, kept: int, confidence: Sequence[float] | None) -> None:
        """Count one round: `kept` of `drafted` drafts were accepted."""
        reached = min(kept + 1, drafted)
        self.rounds += 1
        self.offered[:drafted] += 1
        self.reached[:reached] += 1
        self.accepted[:kept] += 1
        if confidence is not None:
            self.confidence += [float(c) for c in confidence[:reached]]
            self.right += [k < kept for k in range(reached)]

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(
            self.tokens + other.tokens,
            self.rounds + other.rounds,
            self.offered + other.offered,
            self.reached + other.reached,
            self.accepted + other.accepted,
            self.confidence + other.confidence,
            self.right + other.right,
        )

    def summary(self) -> dict[str, Any]:
        """Tokens per round, acceptance per position (given all before; and of all rounds), the confidence head.

        Positions that no round offered, or for the first list reached, are not in the lists.
        """
        offered, reached = int(np.count_nonzero(self.offered)), int(np.count_nonzero(self.reached))
        result: dict[str, Any] = {
            "tokens_per_round": self.tokens / max(self.rounds, 1),
            "rounds": self.rounds,
            "tokens": self.tokens,
            "acceptance": (self.accepted[:reached] / self.reached[:reached]).tolist(),
            "acceptance_unconditional": (self.accepted[:offered] / self.offered[:offered]).tolist(),
        }
        if self.confidence:
            p, y = self.confidence, self.right
            result["confidence"] = {
                "mean": float(np.mean(p)),
                "accepted": float(np.mean(y)),
                "ece": ece(p, y),
                "auc": auc(p, y),
                "brier": brier(p, y),
            }
        return result


class Listening:
    """A drafter whose drafts of the last round can be looked at."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name, self.observe = drafter.name, drafter.observe
        self.drafts: Sequence[Draft | None] = ()

    def draft(self, requests: Sequence[Request], plan: Plan) -> Sequence[Draft | None]:
        """See `Drafter.draft`."""
        self.drafts = self._drafter.draft(requests, plan)
        return self.drafts


def evaluate(
    model: Model,
    conversations: Sequence[Conversation],
    *,
    temperature: float,
    seed: int,
    max_tokens: int,
    drafts: int | None = None,
    on_reply: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Tallies by source and over all, of chains of `drafts` tokens (None: full blocks), one reply at a time.

    Raises:
        InvalidParameter: the target has no drafter.
    """
    if model.drafter is None:
        raise InvalidParameter(f"{model.loaded.name} has no drafter to evaluate; name one with --drafter")
    most = model.drafter.model.config.drafts
    width = 1 + min(drafts or most, most)
    tallies: dict[str, Tally] = {}
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    engine, heard = _listening(model, width)
    for conversation in conversations:
        tally = tallies.setdefault(conversation.source, Tally())
        messages: list[dict[str, str]] = []
        for text in conversation.turns:
            messages.append({"role": "user", "content": text})
            ids = model.encode_chat(messages)
            if len(ids) + max_tokens > model.target.shape.max_context:
                break
            heard.clear()
            request = model.complete(ids, params, engine)
            tally.tokens += len(request.output)
            for one in heard:
                tally.add(*one)
            messages.append({"role": "assistant", "content": request.text.text})
        on_reply()
    total = Tally()
    for tally in tallies.values():
        total = total.plus(tally)
    sources = {name: tallies[name].summary() for name in sorted(tallies)}
    return {"temperature": temperature, "drafts": width - 1, **total.summary(), "sources": sources}


Heard = list[tuple[int, int, Sequence[float] | None]]


def _listening(model: Model, width: int) -> tuple[Engine, Heard]:
    """An engine of chains, and a list that every round is appended to: drafted, accepted, confidence."""
    heard: Heard = []

    def record(report: RoundReport) -> None:
        [tree], [outcome], [draft] = report.trees, report.outcomes, listener.drafts
        # Rounds without a draft verify n-grams, which are not the drafter's.
        drafted = 0 if draft is None else tree.width - 1
        heard.append((drafted, min(len(outcome.path) - 1, drafted), getattr(draft, "confidence", None)))

    engine = model.engine("chain", width=width, record=record)
    engine.drafter = listener = Listening(engine.drafter)
    return engine, heard
