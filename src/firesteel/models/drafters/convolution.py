"""DFlash 2's grouped dynamic causal convolution: each row mixes with the rows before it in its block.

Per layer there are two, around attention and around the MLP. A convolution has two sides, before and after what it
wraps, and one set of data-dependent corrections to both kernels, computed from the input.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firesteel.models.drafters.config import DrafterConfig


class BlockConvolution(nn.Module):
    """Taps along the rows of a block; they never cross its start, where they see zeros. Starts as the identity."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.taps, self.group = config.conv_kernel, config.conv_group
        base = torch.zeros(2, self.taps, config.hidden)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)  # [side, tap, H]
        self.kernel_projection = nn.Linear(config.hidden, 2 * self.taps * config.hidden // self.group, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def around(self, x: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
        """after(inner(before(x))) for rows x `[..., B, H]`, which are already normed."""
        kernels = self.kernels(x)
        return convolve(inner(convolve(x, kernels[..., 0, :, :])), kernels[..., 1, :, :])

    def kernels(self, x: Tensor) -> Tensor:
        """`[..., B, 2, taps, H]`: the kernel of each row, side and tap."""
        delta = self.kernel_projection(x).unflatten(-1, (2, self.taps, -1))
        return self.base_kernel + delta.repeat_interleave(self.group, dim=-1)


def convolve(y: Tensor, kernels: Tensor) -> Tensor:
    """Row i of y `[..., B, H]` becomes the sum over taps of kernels `[..., i, tap, H]` times row i - tap."""
    out = kernels[..., 0, :] * y
    for tap in range(1, kernels.shape[-2]):
        out = out + kernels[..., tap, :] * F.pad(y, (0, 0, tap, 0))[..., : y.shape[-2], :]
    return out
