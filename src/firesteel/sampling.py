"""What a request asks of the sampler, and the reference chain from logits to a token.

    logits ─ min_tokens ─ logit_bias ─ penalties ─┬─ T = 0: argmax
             └───────────── edit ──────────────┘  └─ T > 0: ÷T ─ min_p ─ top_k ─ top_p ─ race(key(seed, position))
                                                            └─────── scores ────────┘

The order is vLLM's. One row at a time, in float64, and nothing here keeps state: what a row sees of the text is passed
in, so a row deep in a token tree is sampled exactly as plain decoding would sample it there.

This file knows nothing of trees, engines or devices; `engine/sampling.py` is its torch twin.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from firesteel.errors import InvalidParameter, unknown
from firesteel.race import HEAT, race
from firesteel.tree import FloatArray, IntArray

GREEDY_BELOW = 1e-5  # vLLM's _SAMPLING_EPS: a temperature under it is 0
MAX_LOGPROBS = 20  # OpenAI's limit, and vLLM's default one

# Uses of the counter's third word. A verifier's draws and a drafter's must never share a number: a draft that knew the
# acceptance test it will face would bias the text.
TOKEN_DRAW = 0  # the target's own token at a position
ACCEPT_DRAW = 1  # + sibling: the acceptance test of that sibling under `reject`
DRAFT_DRAW = 1 << 32  # and up: free for drafters


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """One request's sampling parameters, with OpenAI's and vLLM's meanings and vLLM's defaults.

    Fields:
        temperature: divides the logits; below 1e-5 the choice is greedy.
        top_p: keep the most likely tokens until their mass reaches it, in (0, 1].
        top_k: keep that many of the most likely tokens; 0 or -1 keeps all. Ties at the edge of either are all kept.
        min_p: keep tokens at least this fraction as likely as the likeliest, in [0, 1].
        seed: fixes the text; None or -1 means that the request's owner gives it a `fresh_seed()`.
        presence_penalty, frequency_penalty: subtracted once, or per occurrence, for tokens generated so far; [-2, 2].
        repetition_penalty: divides positive and multiplies other logits of tokens in the prompt or generated so far.
        logit_bias: token id -> number added to its logit, in [-100, 100].
        logprobs: how many top alternatives to report per token; 0 reports the chosen token only, None nothing.
        stop: texts that end the reply.
        stop_token_ids: tokens that end the reply, beside EOS.
        min_tokens: tokens to generate before EOS or a stop token may be chosen.
        max_tokens: tokens to generate at most (vLLM's default is 16; ours is a useful reply).
        ignore_eos: go on after EOS.

    Raises:
        InvalidParameter: a value out of its range or of the wrong type; the message holds name, value and range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    max_tokens: int = 256
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        self._check("temperature", _is_number(self.temperature) and self.temperature >= 0, "a number >= 0")
        self._check("top_p", _is_number(self.top_p) and 0 < self.top_p <= 1, "a number in (0, 1]")
        self._check("top_k", _is_int(self.top_k) and self.top_k >= -1, "an integer >= 1, or 0 or -1 for no limit")
        self._check("min_p", _is_number(self.min_p) and 0 <= self.min_p <= 1, "a number in [0, 1]")
        seed_ok = self.seed is None or (_is_int(self.seed) and -(2**63) <= self.seed < 2**64)
        self._check("seed", seed_ok, "an integer of 64 bits, or None")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            self._check(name, _is_number(value) and -2 <= value <= 2, "a number in [-2, 2]")
        self._check(
            "repetition_penalty",
            _is_number(self.repetition_penalty) and self.repetition_penalty > 0,
            "a number > 0",
        )
        bias_ok = isinstance(self.logit_bias, Mapping) and all(
            _is_int(token) and token >= 0 and _is_number(bias) and -100 <= bias <= 100
            for token, bias in self.logit_bias.items()
        )
        self._check("logit_bias", bias_ok, "a mapping of token ids >= 0 to numbers in [-100, 100]")
        logprobs_ok = self.logprobs is None or (_is_int(self.logprobs) and 0 <= self.logprobs <= MAX_LOGPROBS)
        self._check("logprobs", logprobs_ok, f"an integer in [0, {MAX_LOGPROBS}], or None")
        stop_ok = isinstance(self.stop, tuple) and all(isinstance(text, str) and text for text in self.stop)
        self._check("stop", stop_ok, "a tuple of texts that are not empty")
        ids_ok = isinstance(self.stop_token_ids, tuple) and all(_is_int(i) and i >= 0 for i in self.stop_token_ids)
        self._check("stop_token_ids", ids_ok, "a tuple of token ids >= 0")
        self._check("max_tokens", _is_int(self.max_tokens) and self.max_tokens >= 1, "an integer >= 1")
        min_ok = _is_int(self.min_tokens) and 0 <= self.min_tokens <= self.max_tokens
        self._check("min_tokens", min_ok, f"an integer in [0, max_tokens = {self.max_tokens}]")
        self._check("ignore_eos", isinstance(self.ignore_eos, bool), "true or false")
        # The two sentinels of vLLM end here: inside, 0 keeps all and None is unseeded.
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if self.seed == -1:
            object.__setattr__(self, "seed", None)

    def _check(self, name: str, ok: bool, valid: str) -> None:
        if not ok:
            raise InvalidParameter(f"{name} = {getattr(self, name)!r} is out of range: {valid}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """The parameters from JSON or TOML: null is the default, lists become tuples, token ids may be texts.

        Raises:
            InvalidParameter: an unknown key, naming the nearest known one, or a value out of range.
        """
        known = {f.name for f in fields(cls)}
        for key in values:
            if key not in known:
                raise unknown("sampling parameter", str(key), known)
        given = {key: value for key, value in values.items() if value is not None}
        if isinstance(given.get("stop"), str):
            given["stop"] = (given["stop"],)
        for key in ("stop", "stop_token_ids"):
            if isinstance(given.get(key), list):
                given[key] = tuple(given[key])
        if isinstance(bias := given.get("logit_bias"), Mapping):
            given["logit_bias"] = {_as_id(token): value for token, value in bias.items()}
        return cls(**given)

    @property
    def is_greedy(self) -> bool:
        """Temperature 0: the token is the argmax."""
        return self.temperature < GREEDY_BELOW

    def edits(self, generated: int) -> bool:
        """Whether `edit` changes the logits of a row that has `generated` generated tokens before it."""
        return bool(
            generated < self.min_tokens
            or self.logit_bias
            or self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
        )

    def check_vocab(self, vocab_size: int) -> None:
        """Refuse token ids that the target does not have; for the owner of a request, at its birth.

        Raises:
            InvalidParameter: an id in logit_bias or stop_token_ids is `vocab_size` or more.
        """
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in ids:
                if token >= vocab_size:
                    raise InvalidParameter(f"{name} names token {token}: the target has ids below {vocab_size}")


@dataclass(frozen=True)
class TokenLogprob:
    """The target's own log-probability of a token: natural log, before bias, penalties, temperature and filters.

    Fields:
        token, logprob: the committed token.
        top: the most likely tokens with theirs, likeliest first; `SamplingParams.logprobs` of them.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def edit(
    logits: ArrayLike,  # [V]
    params: SamplingParams,
    prompt: Sequence[int] | IntArray,
    output: Sequence[int] | IntArray,
    stop_ids: Sequence[int],
) -> FloatArray:
    """What precedes the temperature: the min_tokens mask, the bias, the penalties. Returns a new float64[V].

    `output` is all that was generated before this row: committed text, then the row's own path below the anchor.
    `stop_ids` are EOS and the stop tokens: impossible until `min_tokens` tokens are there.
    """
    x = np.array(logits, np.float64)
    if len(output) < params.min_tokens:
        x[list(stop_ids)] = -np.inf
    for token, bias in params.logit_bias.items():
        x[token] += bias
    if params.repetition_penalty != 1:
        seen = np.unique(np.concatenate([np.asarray(prompt, np.int64), np.asarray(output, np.int64)]))
        x[seen] = np.where(x[seen] > 0, x[seen] / params.repetition_penalty, x[seen] * params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        used, counts = np.unique(np.asarray(output, np.int64), return_counts=True)
        x[used] -= params.frequency_penalty * counts + params.presence_penalty
    return x


def scores(logits: ArrayLike, params: SamplingParams) -> FloatArray:
    """float64[V] of edited logits [V] at T > 0: temperature, then min_p, top_k and top_p; -inf is filtered out.

    Each filter is a threshold, so that it does not depend on how a sort orders ties.
    """
    x: FloatArray = np.multiply(logits, 1 / params.temperature, dtype=np.float64)
    if params.min_p > 0:
        x[x < x.max() + math.log(params.min_p)] = -np.inf
    if 0 < params.top_k < len(x):
        x[x < np.partition(x, -params.top_k)[-params.top_k]] = -np.inf
    if params.top_p < 1:
        w = np.exp(x - x.max())
        total = w.sum()
        # Tokens lighter than this weigh less than 1 - top_p together: they are out, and need no sorting.
        falling = np.sort(w[w >= (1 - params.top_p) * total / len(w)])[::-1]
        before = np.cumsum(falling)[:-1]  # the mass ahead of each token but the first, which always stays
        x[w < falling[np.count_nonzero(before < params.top_p * total)]] = -np.inf
    return x


def probabilities(scores: FloatArray) -> FloatArray:
    """float64[V]: the distribution that scores[V] stand for."""
    w: FloatArray = np.exp(scores - scores.max())
    w /= w.sum()
    return w


def best(logits: ArrayLike) -> int:
    """The argmax of logits [V]; the lowest id of a tie."""
    return int(np.argmax(logits))


def draw(p: FloatArray, key: int) -> int:
    """A token drawn from p[V]; p need not be normalised, and p = 0 is never drawn."""
    runners = _in_heats(p, 0.0)
    return race(runners.max(axis=0), lambda heats: runners[:, heats], key)


def draw_scores(scores: FloatArray, key: int) -> int:
    """`draw` from the distribution that scores[V] stand for, of which only a few hundred are exponentiated."""
    runners = _in_heats(scores, -np.inf)
    best = runners.max(axis=0)
    peak = best.max()
    return race(np.exp(best - peak), lambda heats: np.exp(runners[:, heats] - peak), key)


def key_of(seed: int, position: int, draw: int = TOKEN_DRAW) -> int:
    """64 bits that depend on these three arguments only, on every platform.

    `position` counts generated tokens: the first is 0. A hash stands in for a counter-based generator: BLAKE2b
    takes a microsecond for one number, and no state is kept that a batch, a rejection or a preemption could disturb.
    """
    words = struct.pack("<3Q", seed % 2**64, position, draw)
    return int.from_bytes(hashlib.blake2b(words, digest_size=8, person=b"firesteel").digest(), "little")


def uniform(seed: int, position: int, draw: int) -> float:
    """A number in [0, 1) from `key_of`."""
    return (key_of(seed, position, draw) >> 11) * 2.0**-53


def fresh_seed() -> int:
    """A random seed for a request that has none, so that two unseeded requests differ. Its owner keeps it for life."""
    return secrets.randbits(64)


def plain_token(
    logits: ArrayLike,  # [V]
    params: SamplingParams,
    seed: int,
    prompt: Sequence[int] | IntArray,
    output: Sequence[int] | IntArray,
    stop_ids: Sequence[int],
) -> int:
    """One step of plain decoding: the token that every speculative path must give too (greedy and `match`)."""
    x = edit(logits, params, prompt, output, stop_ids)
    return best(x) if params.is_greedy else draw_scores(scores(x, params), key_of(seed, len(output)))


def token_logprob(logits: ArrayLike, token: int, alternatives: int) -> TokenLogprob:
    """The report on one token from its row's raw logits [V]."""
    x = np.array(logits, np.float64)
    peak = x.max()
    x -= peak + math.log(np.exp(x - peak).sum())
    n = min(alternatives, len(x))
    top = np.argpartition(-x, n - 1)[:n] if n else np.empty(0, np.int64)
    top = top[np.lexsort((top, -x[top]))]
    return TokenLogprob(token, float(x[token]), tuple((int(t), float(x[t])) for t in top))


def _in_heats(x: FloatArray, filling: float) -> FloatArray:
    """x[V] as [HEAT, heats], filled up at its end."""
    missing = -len(x) % HEAT
    return (np.append(x, np.full(missing, filling)) if missing else x).reshape(HEAT, -1)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _as_id(token: object) -> object:
    """JSON's keys are texts: "17" is the token 17; anything else is left for the check to refuse."""
    return int(token) if isinstance(token, str) and token.isdecimal() else token
