"""What to draft and what to verify: the policies by name."""

from __future__ import annotations

from dataclasses import replace

from firesteel.errors import unknown
from firesteel.policy.adaspark import AdaSpark
from firesteel.policy.base import MAX_WIDTH, Policy, check_width
from firesteel.policy.config import AdaSparkConfig
from firesteel.policy.fixed import FixedChain, FixedConfig, FixedTree, Off

NAMES = ("adaspark", "auto", "chain", "off", "tree")

EXPERIMENTS = {
    "pinned": AdaSparkConfig(pinned=True),
    "sized": AdaSparkConfig(fitted=False, text=False),
    "textless": AdaSparkConfig(text=False),
}
"""AdaSpark with a part left out, for `bench`: its width given, only its width learned, no candidates from the text."""

__all__ = ["EXPERIMENTS", "MAX_WIDTH", "NAMES", "Policy", "make"]


def make(name: str, *, width: int | None = None) -> Policy:
    """A new policy.

    Args:
        name: `off`, `chain`, `tree`, `adaspark`; or `auto`, which is the best there is: `adaspark`.
        width: rows of one request's verify: exactly, for `chain` and `tree`; at most, for `adaspark`. None takes the
            policy's default; `off` has one row whatever is asked.

    Raises:
        InvalidParameter: an unknown name, or a width outside 1 to 64.
    """
    if width is not None:
        check_width(width)
    fixed = FixedConfig() if width is None else FixedConfig(width=width)
    if name == "off":
        return Off()
    if name == "chain":
        return FixedChain(fixed)
    if name == "tree":
        return FixedTree(fixed)
    if name in ("adaspark", "auto"):
        return AdaSpark(_with(AdaSparkConfig(), width))
    if name in EXPERIMENTS:
        return AdaSpark(_with(EXPERIMENTS[name], width))
    raise unknown("policy", name, NAMES)


def _with(config: AdaSparkConfig, width: int | None) -> AdaSparkConfig:
    return config if width is None else replace(config, width=width)
