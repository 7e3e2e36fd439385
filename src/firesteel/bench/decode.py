"""`bench decode`: policies on the same prompts, the arms interleaved reply by reply."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from firesteel.bench.machine import machine
from firesteel.bench.prompts import Conversation
from firesteel.bench.statistics import geometric_mean_interval, is_looped
from firesteel.engine.drafter import Drafter, NoDrafter
from firesteel.engine.engine import Engine
from firesteel.engine.request import Request
from firesteel.errors import InvalidParameter, unknown
from firesteel.model import NGRAM, Model
from firesteel.rounds import RoundReport
from firesteel.sampling import SamplingParams


@dataclass
class Arm:
    """One policy's engine and what it did.

    Fields:
        speeds: decode tokens per second per reply, by (conversation, turn).
        contexts: tokens of the prompt and half the reply, by the same keys.
        looped: replies of this arm that ended in a repetition loop.
        parts: (draft, verify, host) milliseconds of every round that is no request's first.
    """

    policy: str
    width: int | None
    engine: Engine
    parts: list[tuple[float, float, float]]
    speeds: dict[tuple[str, int], float] = field(default_factory=dict)
    contexts: dict[tuple[str, int], int] = field(default_factory=dict)
    looped: set[tuple[str, int]] = field(default_factory=set)
    tokens: int = 0
    rounds: int = 0
    decode_s: float = 0.0

    def add(self, key: tuple[str, int], request: Request) -> None:
        """Count one reply."""
        if is_looped(request.output):
            self.looped.add(key)
        self.speeds[key] = len(request.output) / request.timing.decode_s
        self.contexts[key] = len(request.prompt) + len(request.output) // 2
        self.tokens += len(request.output)
        self.rounds += request.speculation.rounds
        self.decode_s += request.timing.decode_s


def parse_arms(model: Model, policies: str, width: int | None) -> list[Arm]:
    """Arms from `off,chain:4,auto@ngram`: a policy, `@ngram` to leave the drafter out, and a width after a colon."""
    arms = []
    for item in policies.split(","):
        name, _, own = item.strip().partition(":")
        name, _, source = name.partition("@")
        if own and not own.isdigit():
            raise InvalidParameter(f"width in {item!r} must be a whole number")
        if source not in ("", NGRAM):
            raise unknown("drafter of an arm", source, (NGRAM,))
        arms.append(_arm(model, name, int(own) if own else width, NoDrafter() if source else None))
    return arms


def _arm(model: Model, name: str, width: int | None, drafter: Drafter | None) -> Arm:
    parts: list[tuple[float, float, float]] = []

    def record(report: RoundReport) -> None:
        if not report.first:
            parts.append((report.draft_ms, report.verify_ms, report.other_ms))

    return Arm(name, width, model.engine(name, width=width, drafter=drafter, record=record), parts)


def run(
    model: Model,
    arms: Sequence[Arm],
    conversations: Sequence[Conversation],
    params: SamplingParams,
    on_reply: Callable[[Conversation], None] = lambda conversation: None,
) -> None:
    """Every arm answers every turn; the order of the arms rotates, so that a drift of the machine meets them all.

    A later turn follows the first arm's reply in all arms, so that they always answer the same prompt.
    """
    for arm in arms:  # the first forwards of an engine pay for what all later ones use
        model.complete(model.encode("one two three"), SamplingParams(temperature=0.0, max_tokens=4), arm.engine)
    for number, conversation in enumerate(conversations):
        messages: list[dict[str, str]] = []
        for turn, text in enumerate(conversation.turns):
            messages.append({"role": "user", "content": text})
            ids = model.encode_chat(messages)
            if len(ids) + params.max_tokens > model.target.shape.max_context:
                break
            replies = {}
            shift = (number + turn) % len(arms)
            for arm in [*arms[shift:], *arms[:shift]]:
                request = model.complete(ids, params, arm.engine)
                arm.add((conversation.id, turn), request)
                replies[id(arm)] = request.text.text
            messages.append({"role": "assistant", "content": replies[id(arms[0])]})
        on_reply(conversation)


def summary(model: Model, arms: Sequence[Arm], settings: dict[str, Any]) -> dict[str, Any]:
    """The JSON object of `bench decode`: ratios to the first arm over replies that looped in neither of the two."""
    base = arms[0]
    rows = []
    for arm in arms:
        kept = [key for key in arm.speeds if key not in arm.looped and key not in base.looped]
        ratios = [arm.speeds[key] / base.speeds[key] for key in kept]
        mean, low, high = geometric_mean_interval(ratios, [name for name, _ in kept]) if kept else (None, None, None)
        rows.append(
            {
                "policy": arm.policy,
                "drafter": arm.engine.drafter.name,
                "width": arm.width,
                "replies": len(kept),
                "looped": len(arm.looped),
                "decode_tokens_per_s": arm.tokens / arm.decode_s,
                "tokens_per_round": arm.tokens / arm.rounds,
                "ratio": mean,
                "ratio_low": low,
                "ratio_high": high,
            }
        )
    about = {"target": model.loaded.name, "dtype": model.dtype, "mode": model.modes.name, **settings}
    return {"machine": machine(), "settings": about, "arms": rows, "rounds": [_round(arm) for arm in arms]}


def _round(arm: Arm) -> dict[str, Any]:
    """Where a round's milliseconds go, in medians: the drafter, the target's forward, the host's everything else."""
    parts = zip(*arm.parts, strict=True) if arm.parts else [None] * 3  # none where all rounds were first ones
    draft, verify, host = (None if part is None else statistics.median(part) for part in parts)
    return {
        "policy": arm.policy,
        "drafter": arm.engine.drafter.name,
        "width": arm.width,
        "rounds": len(arm.parts),
        "draft_ms": draft,
        "verify_ms": verify,
        "host_ms": host,
    }
