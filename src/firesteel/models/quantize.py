"""int8 weights, one scale per output, and 16-bit activations, one scale per row.

A verify of a few rows waits for weights, so weights are what must shrink; activations are read from the cache next to
the core and may stay fine. With |code| <= 127 and |activation| <= `activation_limit(K)`, a sum over K products fits an
int32 exactly: it does not depend on its order, hence not on how many rows are verified together, and the processor's
16-bit multiply-add computes it at twice the rate of fp32. `Int8Linear` is the plain twin of `kernels/product.h`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firesteel.models.compact import CompactDecoder, Linear

INT32_MAX = 2**31 - 1
CODE_MAX = 127


def activation_limit(cols: int) -> int:
    """Largest magnitude of a quantised activation for which `cols` products with a code cannot leave an int32.

    29360 for 576 columns, 11008 for 1536, 1179 for 14336: finer than eight bits for every decoder that is around.
    """
    return min(2**15 - 1, INT32_MAX // (CODE_MAX * cols))


def quantize_rows(x: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """x fp32 [N, K] -> (integers as fp32 [N, K], scale [N, 1]) with integers * scale = x up to half a scale."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    limits = torch.full_like(largest, limit)  # a number over a tensor would be a reciprocal, rounded twice
    inverse = torch.where(largest > 0, limits / largest, torch.zeros_like(largest))
    return torch.round(x * inverse), largest / limit


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [out, in] -> (codes int8 [out, in], scales fp32 [out]): symmetric, each output's largest weight at 127."""
    weight = weight.float()
    scales = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny * CODE_MAX) / CODE_MAX
    return torch.round(weight / scales[:, None]).clamp_(-CODE_MAX, CODE_MAX).to(torch.int8), scales


class Int8Linear(nn.Module):
    """x @ (codes * scales).T + bias on quantised x, summed in fp32 here and exactly in the kernels."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        codes, scales = quantize_weight(weight)
        self.limit = activation_limit(weight.shape[1] + -weight.shape[1] % 16)  # the kernels pad columns to 16
        self.register_buffer("codes", codes)  # int8 [out, in]
        self.register_buffer("scales", scales)  # [out]
        self.bias = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)
        self.wide: Tensor | None = None  # the codes as fp32, made at the first eager call and not before

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> fp32 [..., out]."""
        if self.wide is None:
            self.wide = self.codes.float()
        rows, scale = quantize_rows(x.float(), self.limit)
        out = F.linear(rows, self.wide) * scale * self.scales
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
