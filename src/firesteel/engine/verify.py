"""One verify of a batch: the flat logits of all trees in, one outcome per request out.

The rules and the chain are those of layer A. What this file adds is where rows are read and how few of them:

    logits on the host      rows are read in place through numpy, and only rows that the walk reaches
    logits on a device      greedy requests without edits: one argmax over all rows, one transfer of N integers;
                            others: the torch twin, only on rows that the walk reaches

Each request is walked by itself, row by row, so its outcome cannot depend on who shares the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firesteel import sampling as host_sampling
from firesteel.engine import sampling as device_sampling
from firesteel.errors import LosslessViolation
from firesteel.rounds import VerifyOutcome
from firesteel.sampling import SamplingParams, TokenLogprob
from firesteel.tree import Proposal, TokenTree
from firesteel.verify.rules import KeyedDice, greedy, match, reject


@dataclass(frozen=True)
class VerifyRequest:
    """What verifying needs to know of a request.

    Fields:
        params: its sampling parameters.
        seed: `params.seed`, or the `fresh_seed()` its owner gave it.
        prompt_tokens, output_tokens: its text so far; the anchor is the newest of them. Arrays are quickest.
        stop_ids: EOS and `params.stop_token_ids`.
        drafted: for a `DRAWN` tree at T > 0: row -> float64[V], the distribution its first child was drawn from, on
            the device of the logits, over the logical vocabulary.
    """

    params: SamplingParams
    seed: int
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    stop_ids: Sequence[int] = ()
    drafted: Callable[[int], Tensor] | None = None


@dataclass(frozen=True)
class Verified:
    """One request's share of a verify.

    Fields:
        outcome: the path kept and the token after it.
        logprobs: one per committed token, so `len(outcome.path)` of them; None if the request asks for none.
    """

    outcome: VerifyOutcome
    logprobs: tuple[TokenLogprob, ...] | None


def verify(
    trees: Sequence[TokenTree],
    logits: Tensor,  # [N_total, V_padded]: the rows of the first tree, then those of the second, ...
    requests: Sequence[VerifyRequest],
    *,
    vocab_size: int | None = None,
    on_host: bool | None = None,
) -> list[Verified]:
    """Verify every tree by the rule that is lossless for it: `greedy` at T = 0, else `match` or `reject`.

    Args:
        vocab_size: the logical vocabulary; padded ids from it on do not exist. None: all columns.
        on_host: read rows through numpy; by default where the logits are on the CPU already.

    Raises:
        LosslessViolation: a `DRAWN` tree at T > 0 without its `drafted`, or with one that is not what was sampled.
    """
    widths = [tree.width for tree in trees]
    assert logits.shape[0] == sum(widths), f"{logits.shape[0]} rows of logits for {sum(widths)} rows of trees"
    logits = logits.detach()[:, :vocab_size]
    on_host = logits.device.type == "cpu" if on_host is None else on_host

    at_once = not on_host and any(_is_plain_greedy(request) for request in requests)
    wanted = logits.argmax(-1).tolist() if at_once else []

    verified, start = [], 0
    for tree, request, width in zip(trees, requests, widths, strict=True):
        rows = _host_rows(logits, start) if on_host else _device_rows(logits, start)
        chain = host_sampling if on_host else device_sampling
        if at_once and _is_plain_greedy(request):
            outcome = greedy(tree, wanted[start : start + width].__getitem__)
        else:
            outcome = _walk(tree, rows, request, chain)
        verified.append(Verified(outcome, _logprobs(outcome, rows, request, chain)))
        start += width
    return verified


def _is_plain_greedy(request: VerifyRequest) -> bool:
    # Rows further down have more tokens before them, so what holds at the anchor holds below it.
    return request.params.is_greedy and not request.params.edits(len(request.output_tokens))


def _host_rows(logits: Tensor, start: int) -> Callable[[int], np.ndarray]:
    """row of one tree -> its logits, without a copy where numpy has the dtype (bfloat16 is widened row by row)."""
    if logits.dtype in (torch.float32, torch.float64):
        flat = logits.cpu().numpy()
        return lambda row: flat[start + row]
    return lambda row: logits[start + row].float().cpu().numpy()


def _device_rows(logits: Tensor, start: int) -> Callable[[int], Tensor]:
    return lambda row: logits[start + row]


def _walk(tree: TokenTree, rows, request: VerifyRequest, chain) -> VerifyOutcome:
    """One tree by its rule; `chain` is one of the two sampling modules and `rows` gives what it takes."""
    params, position, depths = request.params, len(request.output_tokens), tree.depths

    def edited(row: int):
        """Logits of a row as its own prefix has them: committed text and the path down to it, rejected drafts never."""
        if not params.edits(position + int(depths[row])):
            return rows(row)
        below = tree.tokens[tree.path(row)[1:]]
        output = np.concatenate([np.asarray(request.output_tokens, np.int64), below])
        return chain.edit(rows(row), params, request.prompt_tokens, output, request.stop_ids)

    def scores(row: int):
        return chain.scores(edited(row), params)

    if params.is_greedy:
        return greedy(tree, lambda row: chain.best(edited(row)))
    if tree.proposal is Proposal.FIXED:
        return match(tree, scores, KeyedDice(request.seed, position, chain.draw_scores))
    if request.drafted is None:
        raise LosslessViolation("a drawn tree at T > 0 is verified against the q it was drawn from: none was given")
    drafted = request.drafted
    q = (lambda row: drafted(row).numpy(force=True)) if chain is host_sampling else drafted
    dice = KeyedDice(request.seed, position, chain.draw)
    return reject(tree, lambda row: chain.probabilities(scores(row)), q, dice)


def _logprobs(outcome: VerifyOutcome, rows, request: VerifyRequest, chain) -> tuple[TokenLogprob, ...] | None:
    """The report on each committed token: the one wanted at each kept row, from that row's raw logits."""
    n = request.params.logprobs
    if n is None:
        return None
    kept = zip(outcome.path.tolist(), outcome.wanted.tolist(), strict=True)
    return tuple(chain.token_logprob(rows(row), token, n) for row, token in kept)
