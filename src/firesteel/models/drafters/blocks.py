"""A drafter's passes over the blocks of a whole batch: on torch, or by the compiled kernels.

    TorchBlocks     the plain twin: any drafter, any device
    NativeBlocks    the kernels of the target's fast path: drafters whose layers are a compact decoder's

Both keep context K/V in a `KVCache` of the drafter's own shape and give the same states within rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from firesteel.errors import UnsupportedModel
from firesteel.models.cache import KVCache
from firesteel.models.compact import CompactDecoder, Layer, Linear, RMSNorm, Shape
from firesteel.models.drafters import backbone
from firesteel.models.drafters.model import DrafterModel
from firesteel.models.drafters.walk import Choose, Walk, walk
from firesteel.models.native import NativeDecoder, supports_native
from firesteel.models.native_drafter import NativeContext, NativeWalk
from firesteel.models.package import Build
from firesteel.models.quantize import quantize
from firesteel.models.rows import Block, pack
from firesteel.tree import IntArray


class Blocks(Protocol):
    """The passes of a drafter: over new context, over blocks, and along them."""

    def append(self, features: Sequence[Tensor], slots: Sequence[int], cache: KVCache) -> None:
        """Append the context K/V of new tokens, features `[a, n * H_target]` per slot, behind what the slots hold."""
        ...

    def __call__(
        self, anchors: Sequence[int], widths: Sequence[int], slots: Sequence[int], cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        """One pass over blocks of `widths[i] >= 1` rows at the ends of the contexts in `slots[i]`.

        Returns:
            base logits fp32 `[N, draft_vocab]` and final-normed states `[N, H]` of the N rows, block after block.
        """
        ...

    def walk(
        self,
        base: Tensor,
        h: Tensor,
        anchors: Sequence[int],
        starts: IntArray,
        lengths: IntArray,
        heats: Sequence[float],
        count: int,
        choose: Choose | None = None,
    ) -> Walk:
        """From states to tokens: see `walk.walk`."""
        ...


def new_context_cache(model: DrafterModel, slots: int, dtype: torch.dtype, device: torch.device) -> KVCache:
    """An empty cache for the context K/V of `slots` requests."""
    shape = model.config
    return KVCache(
        layers=shape.layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim, dtype=dtype, device=device, slots=slots
    )


def new_places(cache: KVCache, slots: Sequence[int], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Room for `counts[i]` more tokens behind what `slots[i]` holds: the slot and the place of each, `int64[n]`."""
    cache.reserve(slots, counts)
    places = [torch.arange(cache.lengths[slot], cache.lengths[slot] + n) for slot, n in zip(slots, counts, strict=True)]
    return torch.repeat_interleave(torch.tensor(slots), torch.tensor(counts)), torch.cat(places)


class TorchBlocks:
    """The plain twin, padded to the widest block and the longest context."""

    def __init__(self, model: DrafterModel) -> None:
        self._model = model

    @torch.inference_mode()
    def append(self, features: Sequence[Tensor], slots: Sequence[int], cache: KVCache) -> None:
        """See `Blocks.append`."""
        owners, places = (x.to(cache.keys.device) for x in new_places(cache, slots, [len(rows) for rows in features]))
        like = self._model.fc.weight
        keys, values = self._model.context(torch.cat(list(features)).to(like), places)
        for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
            cache.keys[owners, layer, :, places] = key.to(cache.keys)
            cache.values[owners, layer, :, places] = value.to(cache.values)
        for slot, rows in zip(slots, features, strict=True):
            cache.lengths[slot] += len(rows)

    @torch.inference_mode()
    def __call__(
        self, anchors: Sequence[int], widths: Sequence[int], slots: Sequence[int], cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        """See `Blocks.__call__`."""
        model, device = self._model, self._model.fc.weight.device
        lengths = torch.tensor([cache.lengths[slot] for slot in slots], device=device)
        longest, most = int(lengths.max()), max(widths)
        places = torch.arange(longest, device=device).expand(len(slots), -1)

        def held(stored: Tensor) -> list[Tensor]:
            part = stored[list(slots)][:, :, :, :longest].transpose(2, 3)  # [C, layers, T, kv_heads, D]
            return [part[:, layer].to(model.fc.weight) for layer in range(model.config.layers)]

        context = backbone.Context(held(cache.keys), held(cache.values), places, (places < lengths[:, None])[:, None])
        rows = model.rows(torch.tensor(anchors, device=device)[:, None], most)
        used = torch.tensor(widths, device=device)[:, None]
        h = model.block(rows, lengths[:, None], context, used)[:, 0]  # [C, B, H]
        h = h[torch.arange(most, device=device) < used]
        return model.logits(h), h

    def walk(
        self,
        base: Tensor,
        h: Tensor,
        anchors: Sequence[int],
        starts: IntArray,
        lengths: IntArray,
        heats: Sequence[float],
        count: int,
        choose: Choose | None = None,
    ) -> Walk:
        """See `Blocks.walk`."""
        return walk(self._model, base, h, anchors, starts, lengths, heats, count, choose)


class NativeBlocks:
    """The kernels' twin; its weights in the dtype asked for.

    Raises UnsupportedModel where `supports_blocks` says why not.
    """

    def __init__(self, model: DrafterModel, build: Build, dtype: str) -> None:
        if reason := supports_blocks(model):
            raise UnsupportedModel(reason)
        self._config, self._norm = model.config, RMSNorm(model.norm.weight.detach().float(), model.config.eps)
        if dtype == "bf16":
            model = copy.deepcopy(model).to(torch.bfloat16)  # the context goes on in the caller's dtype
        decoder = compact(model)
        self._decoder = NativeDecoder(quantize(decoder) if dtype == "int8" else decoder, build)
        fc = model.fc.weight.detach().to(torch.float32 if dtype == "fp32" else torch.bfloat16)
        self._context = NativeContext(self._decoder, Linear(fc), model.hidden_norm.weight)
        self._model, self._walk, head = model, None, model.markov_head
        if head is not None and head.kind == "vanilla":
            w2 = Linear(head.markov_w2.weight.detach().to(fc.dtype))
            self._walk = NativeWalk(self._decoder, head.markov_w1.weight, w2, model.kept)

    @torch.inference_mode()
    def append(self, features: Sequence[Tensor], slots: Sequence[int], cache: KVCache) -> None:
        """See `Blocks.append`."""
        owners, places = new_places(cache, slots, [len(rows) for rows in features])
        self._context(torch.cat(list(features)), places, owners, places, cache.keys, cache.values)
        for slot, rows in zip(slots, features, strict=True):
            cache.lengths[slot] += len(rows)

    @torch.inference_mode()
    def __call__(
        self, anchors: Sequence[int], widths: Sequence[int], slots: Sequence[int], cache: KVCache
    ) -> tuple[Tensor, Tensor]:
        """See `Blocks.__call__`."""
        causal = self._config.causal[0]
        blocks = [Block(a, self._config.mask_token_id, w, causal) for a, w in zip(anchors, widths, strict=True)]
        cache.reserve(slots, widths)  # a block's own K/V stand behind the context until the next one's
        rows = pack(blocks, slots, [cache.lengths[slot] for slot in slots])
        keys, values = cache.keys[rows.slot_range], cache.values[rows.slot_range]
        logits, last = self._decoder(rows, keys, values)
        return logits, self._norm(last)

    def walk(
        self,
        base: Tensor,
        h: Tensor,
        anchors: Sequence[int],
        starts: IntArray,
        lengths: IntArray,
        heats: Sequence[float],
        count: int,
        choose: Choose | None = None,
    ) -> Walk:
        """See `Blocks.walk`; by the kernels, unless the head has a gate or a memory or somebody chooses."""
        if self._walk is None or choose is not None:
            return walk(self._model, base, h, anchors, starts, lengths, heats, count, choose)
        return Walk(*self._walk(base, anchors, starts, lengths, heats, min(count, base.shape[1])))


def supports_blocks(model: DrafterModel) -> str | None:
    """None when the kernels can run a drafter's backbone, else a sentence saying why not."""
    config = model.config
    if config.conv_kernel:
        return "the kernels know no convolutions along a block"
    if not config.uniform:
        return "the layers of this drafter see their blocks in different directions"
    if config.embedding_scale != 1.0 or config.output_multiplier != 1.0 or config.softcap is not None:
        return "the kernels do not scale a drafter's input or logits"
    return supports_native(_shape(model))


def _shape(model: DrafterModel) -> Shape:
    config = model.config
    return Shape(
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate,
        vocab=config.draft_vocab,
        eps=config.eps,
        rope_scale=model.rope_scale,
        windows=config.windows,
        taps=(config.layers - 1,),
    )


def compact(model: DrafterModel) -> CompactDecoder:
    """The backbone's layers and head as a compact decoder, tapped behind its last layer."""
    assert model.embed is not None and model.head is not None, "lend() comes first"
    shape, eps = _shape(model), model.config.eps

    def norm(module: backbone.Norm) -> RMSNorm:
        return RMSNorm(module.weight.detach(), eps)

    def beside(*parts: torch.nn.Linear) -> Linear:
        bias = None if parts[0].bias is None else torch.cat([part.bias.detach() for part in parts])
        return Linear(torch.cat([part.weight.detach() for part in parts]), bias)

    layers = []
    for layer in model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        layers.append(
            Layer(
                shape,
                {
                    "input_norm": norm(layer.input_layernorm),
                    "qkv": beside(attention.q_proj, attention.k_proj, attention.v_proj),
                    "q_norm": norm(attention.q_norm),
                    "k_norm": norm(attention.k_norm),
                    "o": beside(attention.o_proj),
                    "post_norm": norm(layer.post_attention_layernorm),
                    "gate_up": beside(mlp.gate_proj, mlp.up_proj),
                    "down": beside(mlp.down_proj),
                },
            )
        )
    return CompactDecoder(shape, model.embed, layers, norm(model.norm), Linear(model.head), model.inv_freq).eval()
