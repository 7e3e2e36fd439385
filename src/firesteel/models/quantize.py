"""int8 weights, one scale per output, and int8 activations, one scale per row and 32 columns.

A verify of a few rows waits for weights; a wide one for multiplications, of which a processor with VNNI does four times
as many on bytes as on fp32. A sum over 32 columns is an exact integer; the groups' sums are scaled and added in fp32,
in the order of the columns, so a row's result does not depend on how many rows are verified together. The groups are
narrow because a few activations of a hidden state are many times as large as the others: with one scale for a whole row
the probabilities suffer eight times as much. `Int8Linear` is the plain twin of `kernels/product.h`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firesteel.models.compact import CompactDecoder, Linear

CODE_MAX = 127
GROUP = 32


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x fp32 [N, K] -> (codes as fp32 [N, G, 32], scales [N, G, 1]): codes * scales = x up to half a scale.

    G = K / 32, rounded up; the last group's missing columns are zero.
    """
    groups = F.pad(x, (0, -x.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    limits = torch.full_like(largest, CODE_MAX)  # a number over a tensor would be a reciprocal, rounded twice
    inverse = torch.where(largest > 0, limits / largest, torch.zeros_like(largest))
    return torch.round(groups * inverse), largest / CODE_MAX


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [out, in] -> (codes int8 [out, in], scales fp32 [out]): symmetric, each output's largest weight at 127."""
    weight = weight.float()
    scales = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny * CODE_MAX) / CODE_MAX
    return torch.round(weight / scales[:, None]).clamp_(-CODE_MAX, CODE_MAX).to(torch.int8), scales


class Int8Linear(nn.Module):
    """x @ (codes * scales).T + bias on quantised x; a group's sum is rounded here and exact in the kernels."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        codes, scales = quantize_weight(weight)
        self.register_buffer("codes", codes)  # int8 [out, in]
        self.register_buffer("scales", scales)  # [out]
        self.bias = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)
        self.wide: Tensor | None = None  # the codes as fp32, made at the first eager call and not before

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> fp32 [..., out]."""
        if self.wide is None:
            self.wide = self.codes.float()
        codes, scales = quantize_rows(x.float())
        out = F.linear((codes * scales).flatten(-2)[..., : x.shape[-1]], self.wide) * self.scales
        return out if self.bias is None else out + self.bias


def quantize(decoder: CompactDecoder, keep: Callable[[str], bool] = lambda name: False) -> CompactDecoder:
    """A decoder with every matrix (qkv, o, gate_up, down, head) in int8, norms and embeddings shared with `decoder`.

    `keep(name)` says which matrices stay as they are, by their module name (`layers.3.down`, `head`).
    """
    names = {name for name, module in decoder.named_modules() if isinstance(module, Linear) and not keep(name)}
    memo = {id(p): p for p in decoder.parameters()} | {id(b): b for b in decoder.buffers()}
    for name in names:  # a matrix is replaced, not copied
        module = decoder.get_submodule(name)
        memo[id(module)] = Int8Linear(module.weight.detach(), None if module.bias is None else module.bias.detach())
    return copy.deepcopy(decoder, memo)


def mean_kl(reference: Tensor, logits: Tensor) -> float:
    """Mean over rows of KL(reference || logits) in nats; both [N, vocab]."""
    p, q = reference.double().log_softmax(-1), logits.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())
