"""`specdiff`: is speculative text the plain text, and if not, how near was the tie where they part?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from firesteel.model import Model
from firesteel.models.rows import pack
from firesteel.models.target import Target, new_cache
from firesteel.sampling import SamplingParams
from firesteel.tree import TokenTree


@dataclass(frozen=True)
class Difference:
    """Where two texts part.

    Fields:
        position: index in the reply of the first token that differs.
        plain, speculative: the two tokens there; None where one reply had ended.
        gap: plain decoding's logit of its best token less that of its second best at that position. A small gap is a
            near tie, which rounding may turn; a large one is a fault.
    """

    position: int
    plain: int | None
    speculative: int | None
    gap: float


def compare(
    model: Model, ids: Sequence[int], policy: str, width: int | None, max_tokens: int
) -> tuple[list[int], Difference | None]:
    """Decode greedily both ways.

    Returns:
        the plain reply, and where the speculative one parts from it (None: nowhere).
    """
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    plain = model.complete(ids, params, model.engine("off")).output
    speculative = model.complete(ids, params, model.engine(policy, width=width)).output
    position = first_difference(plain, speculative)
    if position is None:
        return plain, None
    gap = top_two_gap(model.target, [*ids, *plain[:position]])
    return plain, Difference(position, _at(plain, position), _at(speculative, position), gap)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first place where two sequences differ, the end of the shorter included; None if equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def top_two_gap(target: Target, text: Sequence[int]) -> float:
    """Difference of the two best logits after `text`, from a fresh prefill and one row."""
    cache = new_cache(target, slots=1)
    slot = cache.acquire()
    cache.reserve([slot], [len(text)])
    rows = pack([TokenTree.chain(text[0], text[1:])], [slot], [0], target.device)
    logits, _ = target.forward(rows, cache, keep=torch.tensor([len(text) - 1], device=target.device))
    best = logits[0].topk(2).values
    return float(best[0] - best[1])


def _at(tokens: Sequence[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None
