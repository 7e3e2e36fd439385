"""An owner, and a policy that learns whatever it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from firesteel.errors import DamagedState
from firesteel.policy.fixed import Off
from firesteel.rounds import RoundReport
from firesteel.store.file import Learned
from firesteel.store.owner import Owner

OWNER = Owner(
    target="some/target",
    target_weights="aa",
    drafter="ngram",
    drafter_weights="",
    device="cpu",
    processor="a processor (AVX2)",
    threads=1,
    dtype="fp32",
    mode="eager",
    engine="firesteel 0",
)
NAME = OWNER.file_name()


def other(**changes: Any) -> Owner:
    """Another owner."""
    return replace(OWNER, **changes)


def learned(rounds: int, state: Any = None, requests: int = 1) -> Learned:
    """What a policy learned in so many rounds."""
    return Learned("2026-01-01T00:00:00Z", rounds, requests, {"of": rounds} if state is None else state)


class Pupil(Off):
    """A policy with a state of numbers; negative ones are damage."""

    def __init__(self, name: str = "pupil", numbers: Sequence[float] = ()) -> None:
        self.name = name  # type: ignore[misc]
        self.numbers = [*numbers]

    def learn(self, report: RoundReport) -> None:
        self.numbers.append(float(report.rows))

    def state(self) -> dict[str, Any]:
        return {"numbers": self.numbers}  # not a copy: whoever keeps it must make one

    def load(self, state: dict[str, Any]) -> None:
        self.numbers = []
        if min(state["numbers"], default=0.0) < 0.0:
            raise DamagedState("stored state: a negative number")
        self.numbers = [*state["numbers"]]
