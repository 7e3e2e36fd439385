"""Attention over the cache, with a tree's mask: one function for every transformers model.

It is registered under the name "firesteel" in transformers' attention interface. The facts of the batch reach it as
keyword arguments of the model's forward, never through a global: `packed_rows` and `kv_cache` (plain `cache` is a name
of transformers' own).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface

from firesteel.errors import UnsupportedModel
from firesteel.models.cache import KVCache
from firesteel.models.rows import PackedRows

NAME = "firesteel"


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Masked attention with the query heads of a K/V group folded into rows.

    K/V is then read once per group instead of once per head.

    Args:
        query: [B, kv_heads, groups * R, D].
        keys, values: [B, kv_heads, S, D].
        mask: bool [B, 1, groups * R, S].
        softcap: logits are squashed to softcap * tanh(logits / softcap) where the model says so (Gemma 2).

    Returns:
        [B, kv_heads, groups * R, D].
    """
    if softcap is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    logits = query @ keys.transpose(-1, -2) * scale
    logits = (softcap * torch.tanh(logits / softcap)).masked_fill(~mask, -math.inf)
    return logits.softmax(-1, dtype=torch.float32).to(values.dtype) @ values


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, heads, N, D]
    key: Tensor,  # [1, kv_heads, N, D]
    value: Tensor,  # [1, kv_heads, N, D]
    attention_mask: Tensor | None,
    *,
    packed_rows: PackedRows,
    kv_cache: KVCache,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,  # dropout, position_ids and other arguments of transformers that do not change the result
) -> tuple[Tensor, None]:
    """Write the new rows' K/V into the cache, then let each row see the places its mask allows."""
    if s_aux is not None or position_bias is not None:
        raise UnsupportedModel(
            f"{type(module).__name__} uses attention sinks or a position bias, which are not supported"
        )
    rows, cache = packed_rows, kv_cache
    layer: int = module.layer_idx  # type: ignore[assignment]
    _, heads, _, width = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    batch, most = rows.table.shape
    places = rows.mask.shape[-1]

    keys, values = cache.keys[rows.slot_range], cache.values[rows.slot_range]
    keys[rows.slots, layer, :, rows.places] = key[0].transpose(0, 1)
    values[rows.slots, layer, :, rows.places] = value[0].transpose(0, 1)

    padded = query[0] if batch == 1 else query[0][:, rows.table.flatten()]
    folded = padded.view(kv_heads, groups, batch, most, width).permute(2, 0, 1, 3, 4)
    out = attend(
        folded.reshape(batch, kv_heads, groups * most, width),
        keys[:, layer, :, :places],
        values[:, layer, :, :places],
        rows.folded_mask(groups, sliding_window),
        scaling if scaling is not None else width**-0.5,
        softcap,
    )
    out = out.view(batch, heads, most, width).transpose(1, 2).reshape(batch * most, heads, width)
    return (out if batch == 1 else out[rows.flat])[None], None


AttentionInterface.register(NAME, tree_attention)
