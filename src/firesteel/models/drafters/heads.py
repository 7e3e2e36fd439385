"""The heads of block drafters: what turns a block's states into a distribution of each token given the one before.

Markov head       DSpark: a low-rank bias to the logits, from the token before
confidence head   DSpark: how much of the target's distribution the draft's will cover
path selector     DFlash 2: scores of a candidate's pairs with the candidates before
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from firesteel.models.drafters.config import DrafterConfig


class Weight(nn.Module):
    """A table of rows under a checkpoint's name `<name>.weight`."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width).normal_(std=0.02))


class MarkovHead(nn.Module):
    """b = W2 f(W1[x], h, s): the bias that the token before adds to the logits (DSpark).

    vanilla   f = e                             e = W1[x]
    gated     f = sigmoid(Wg [h; e] + bg) * e
    rnn       f = tanh(o), with a state s:      (a, c, o) = Wj [s; e; h] + bj,  s' = sigmoid(a) s + sigmoid(-a) tanh(c)
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        rank, self.kind = config.markov_rank, config.markov_kind
        self.markov_w1 = Weight(config.vocab, rank)
        self.markov_w2 = Weight(config.draft_vocab, rank)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(config.hidden + rank, rank)
        if self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + config.hidden, 3 * rank)

    def embed(self, tokens: Tensor) -> Tensor:
        """e `[..., r]` of target token ids `[...]`."""
        return self.markov_w1.weight[tokens]

    def step(self, e: Tensor, h: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """f `[..., r]`, whose product with W2 is the bias, and the state after this token.

        Args:
            e: `[..., r]` of the token before; h: `[..., H]` of the row; state: `[..., r]`, None at the block's start.
        """
        if self.kind == "vanilla":
            return e, None
        if self.kind == "gated":
            return torch.sigmoid(self.gate_proj(torch.cat([h, e], -1))) * e, None
        state = torch.zeros_like(e) if state is None else state
        keep, new, out = self.joint_proj(torch.cat([state, e, h], -1)).chunk(3, dim=-1)
        gate = torch.sigmoid(keep)
        return torch.tanh(out), gate * state + (1 - gate) * torch.tanh(new)

    def forced(self, before: Tensor, h: Tensor) -> Tensor:
        """f `[..., B, r]` for known tokens before each row `[..., B]` and states h `[..., B, H]`."""
        e = self.embed(before)
        if self.kind != "rnn":
            return self.step(e, h)[0]
        state, factors = None, []
        for row in range(e.shape[-2]):
            factor, state = self.step(e[..., row, :], h[..., row, :], state)
            factors.append(factor)
        return torch.stack(factors, dim=-2)

    def bias(self, factor: Tensor) -> Tensor:
        """`[..., draft_vocab]` of f `[..., r]`."""
        return nn.functional.linear(factor, self.markov_w2.weight)


class ConfidenceHead(nn.Module):
    """The logit of sum_v min(p_v, q_v), given that all tokens before were accepted. It never sees its own token."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.with_markov = config.confidence_markov
        self.proj = nn.Linear(config.hidden + (config.markov_rank if self.with_markov else 0), 1)

    def forward(self, h: Tensor, e: Tensor | None) -> Tensor:
        """Logits fp32 `[...]` of rows h `[..., H]` whose predecessors have Markov rows e `[..., r]`."""
        x = torch.cat([h, e], -1) if self.with_markov else h
        bias = None if self.proj.bias is None else self.proj.bias.float()
        return nn.functional.linear(x.float(), self.proj.weight.float(), bias)[..., 0]


class PathSelector(nn.Module):
    """score(a -> b) = U(b) + sum_r A[a, r] (Hp h)[r] B[b, r] over the top candidates of each row (DFlash 2)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        rank = config.selector_rank
        self.predecessor_codebook = nn.Parameter(torch.empty(config.vocab, rank).normal_(std=0.02))
        self.successor_codebook = nn.Parameter(torch.empty(config.vocab, rank).normal_(std=0.02))
        self.hidden_projection = nn.Linear(config.hidden, rank, bias=False)

    def pair_scores(self, before: Tensor, candidates: Tensor, h: Tensor) -> Tensor:
        """What predecessors `[..., P]` add to candidates `[..., K]` of a row with state h `[..., H]`: `[..., P, K]`."""
        left = self.predecessor_codebook[before] * self.hidden_projection(h)[..., None, :]
        return left @ self.successor_codebook[candidates].transpose(-1, -2)
