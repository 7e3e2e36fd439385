"""`bench peers`: engines on the same prompts and the same machine, interleaved reply by reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from firesteel.bench.contenders import CONTEXT, PLAIN, Contender, Reply
from firesteel.bench.prompts import Conversation
from firesteel.bench.statistics import geometric_mean_interval, is_looped
from firesteel.model import Model

Key = tuple[str, int]  # conversation, turn
PAUSE_S = 0.2  # before a reply: by then the threads of the engine before it no longer wait actively for work


@dataclass
class Score:
    """What one contender did."""

    contender: Contender
    replies: dict[Key, Reply] = field(default_factory=dict)

    @property
    def looped(self) -> set[Key]:
        """Replies that ended in a repetition loop."""
        return {key for key, reply in self.replies.items() if is_looped(reply.tokens)}

    @property
    def speeds(self) -> dict[Key, float]:
        """Tokens per second of every reply that went on after what came first."""
        return {key: one.timed / one.seconds for key, one in self.replies.items() if one.timed and one.seconds > 0}


def run(
    model: Model,
    contenders: Sequence[Contender],
    conversations: Sequence[Conversation],
    most: int,
    on_reply: Callable[[], None] = lambda: None,
    pause: Callable[[float], None] = time.sleep,
) -> list[Score]:
    """Every contender answers every turn, one after the other; their order rotates, as in `decode.run`.

    A later turn follows the first contender's reply for all of them, so that they always answer the same prompt.
    """
    scores = [Score(contender) for contender in contenders]
    for contender in contenders:  # what the first reply pays for and no later one does
        contender.reply(model.encode("one two three"), 8)
    for number, conversation in enumerate(conversations):
        messages: list[dict[str, str]] = []
        for turn, text in enumerate(conversation.turns):
            messages.append({"role": "user", "content": text})
            ids = model.encode_chat(messages)
            if len(ids) + most > min(CONTEXT, model.target.shape.max_context):
                break
            shift = (number + turn) % len(scores)
            for score in [*scores[shift:], *scores[:shift]]:
                pause(PAUSE_S)
                score.replies[conversation.id, turn] = score.contender.reply(ids, most)
                on_reply()
            messages.append({"role": "assistant", "content": scores[0].replies[conversation.id, turn].text})
    return scores


def summary(scores: Sequence[Score]) -> dict[str, Any]:
    """One precision's figures: `arms`, and `ratios` of their speeds."""
    named = {score.contender.name: score for score in scores}
    return {
        "arms": [_row(score, named) for score in scores],
        "ratios": [_ratio(named[one], named[other]) for one, other in _pairs(scores)],
    }


def _pairs(scores: Sequence[Score]) -> Iterator[tuple[str, str]]:
    """Our arms to every peer's, and speculation to the same engine without it."""
    for score in scores:
        one = score.contender
        for other in (score.contender for score in scores):
            rival = one.engine == "firesteel" != other.engine
            if rival or (other.name == PLAIN[one.engine] != one.name):
                yield one.name, other.name


def _row(score: Score, named: dict[str, Score]) -> dict[str, Any]:
    """An arm's own figures, over all replies that did not end in a loop."""
    kept = [key for key in score.speeds if key not in score.looped]
    replies = [score.replies[key] for key in kept]
    tokens, seconds = sum(one.timed for one in replies), sum(one.seconds for one in replies)
    rounds = sum(one.rounds or 0 for one in replies)
    plain = named.get(PLAIN[score.contender.engine])
    same = None if plain is None else sum(plain.replies[key].text == score.replies[key].text for key in kept)
    own_seconds = sum(one.own_seconds or 0.0 for one in replies)
    parts = {name: sum(one.parts.get(name, 0.0) for one in replies) for one in replies for name in one.parts}
    return {
        "arm": score.contender.name,
        "engine": score.contender.engine,
        "replies": len(kept),
        "looped": len(score.looped),
        "same_as_plain": same,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds if seconds else None,
        "own_tokens_per_s": tokens / own_seconds if own_seconds else None,
        "rounds": rounds,
        "tokens_per_round": tokens / rounds if rounds else None,
        "round_ms": seconds * 1e3 / rounds if rounds else None,
        "parts_ms": {name: ms / rounds for name, ms in parts.items()} if rounds else {},
        "speeds": [[*key, speed] for key, speed in score.speeds.items()],
    }


def _ratio(one: Score, other: Score) -> dict[str, Any]:
    """Speed of one to that of the other over replies that looped in neither, with a 95% interval."""
    ours, theirs, looped = one.speeds, other.speeds, one.looped | other.looped
    kept = [key for key in ours if key in theirs and key not in looped]
    ratios = [ours[key] / theirs[key] for key in kept]
    mean, low, high = geometric_mean_interval(ratios, [name for name, _ in kept]) if kept else (None, None, None)
    names = {"arm": one.contender.name, "to": other.contender.name}
    return {**names, "replies": len(kept), "ratio": mean, "ratio_low": low, "ratio_high": high}
