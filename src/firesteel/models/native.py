"""The compiled decoder: the weights of a compact decoder, packed for the kernels, behind the same call.

The whole forward is one call into `kernels/decoder.cpp`. The structs below mirror those of `kernels/`.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, byref, c_double, c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor, nn

from firesteel.errors import InvalidParameter, UnsupportedModel
from firesteel.models.compact import CompactDecoder, Layer, Linear, Shape
from firesteel.models.package import Build
from firesteel.models.quantize import Int8Linear
from firesteel.models.rows import PackedRows

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
TILE = 16
PHASES = ("products", "attention", "head", "rest")
ERRORS = {1: "token", 2: "slot", 3: "place", 4: "row of the mask", 5: "length of the mask", 6: "row to keep"}


class Matrix(Structure):
    _fields_ = (
        ("tiles", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("cols", c_int64),
        ("kind", c_int32),
    )


class LayerWeights(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("input_norm", "q_norm", "k_norm", "post_norm")),
        *((name, Matrix) for name in ("qkv", "o", "gate_up", "down")),
        ("window", c_int64),
    )


class Model(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("embed", "inv_freq", "norm")),
        ("layers", POINTER(LayerWeights)),
        *((name, c_void_p) for name in ("taps", "windows")),
        ("head", Matrix),
        *(
            (name, c_int64)
            for name in (
                "count",
                "hidden",
                "heads",
                "kv_heads",
                "dim",
                "embed_rows",
                "vocab",
                "tap_count",
                "window_count",
            )
        ),
        ("embed_kind", c_int32),
        ("eps", c_float),
        ("rope_scale", c_float),
    )


class Call(Structure):
    _fields_ = (
        *(
            (name, c_void_p)
            for name in ("tokens", "positions", "slots", "places", "flat", "keep", "mask", "key_positions")
        ),
        *((name, c_void_p) for name in ("keys", "values", "logits", "features")),
        ("seconds", POINTER(c_double)),
        *((name, c_int64) for name in ("n", "kept", "slots_count", "width", "length", "capacity")),
        ("cache_kind", c_int32),
        ("threads", c_int32),
    )


def supports_native(shape: Shape) -> str | None:
    """None when the kernels can run a compact decoder of this shape, else a sentence saying why not."""
    if shape.head_dim % TILE or shape.head_dim > 1024:
        return f"the kernels need heads of a multiple of {TILE} numbers, at most 1024, not {shape.head_dim}"
    return None


def padded(x: Tensor, *sizes: int) -> Tensor:
    """x, its last dimensions filled up with zeros to multiples of `sizes`."""
    pads = [pad for size, have in zip(sizes[::-1], x.shape[::-1], strict=False) for pad in (0, -have % size)]
    return nn.functional.pad(x, pads)


def tiles_of(weight: Tensor, step: int) -> Tensor:
    """weight [out, in] -> tiles of 16 outputs [out/16, in/step, 16, step]."""
    weight = padded(weight, TILE, TILE)
    out, cols = weight.shape
    return weight.view(out // TILE, TILE, cols // step, step).transpose(1, 2).contiguous()


class PackedWeights:
    """The structs of a model for the kernels of `library`, and the tensors that their pointers lead to."""

    def __init__(self, library: CDLL) -> None:
        self.alive: list[Tensor] = []
        self._steps = {torch.float32: 1, torch.bfloat16: 2, torch.int8: library.firesteel_codes_per_step()}
        self._unsigned = library.firesteel_code_offset() == 128

    def pointer(self, x: Tensor) -> int:
        self.alive.append(x)
        return x.data_ptr()

    def vector(self, x: Tensor | None) -> int | None:
        return None if x is None else self.pointer(padded(x.detach().float().cpu(), TILE).contiguous())

    def matrix(self, linear: nn.Module, *, gated: bool = False) -> Matrix:
        """`gated`: the two halves of the outputs are laid in turns, a tile of the first, a tile of the second."""
        if isinstance(linear, Int8Linear):
            weight, scales = linear.codes, linear.scales
        else:
            assert isinstance(linear, Linear)
            weight, scales = linear.weight.detach(), None
        bias = None if linear.bias is None else linear.bias.detach().float()

        def arranged(x: Tensor | None) -> Tensor | None:
            if x is None or not gated:
                return x
            halves = x.reshape(x.shape[0], -1).chunk(2)
            halves = [padded(half, TILE, 1).unflatten(0, (-1, TILE)) for half in halves]
            return torch.stack(halves, dim=1).flatten(0, 2).reshape(-1, *x.shape[1:])

        tiles = tiles_of(arranged(weight), self._steps[weight.dtype])
        if weight.dtype == torch.int8 and self._unsigned:
            tiles ^= -128  # which adds 128 to what is read as an unsigned byte
        return Matrix(
            self.pointer(tiles),
            self.vector(arranged(scales)),
            self.vector(arranged(bias)),
            tiles.shape[0] * TILE,
            weight.shape[1] + -weight.shape[1] % TILE,
            KINDS[weight.dtype],
        )

    def layer(self, layer: Layer, window: int) -> LayerWeights:
        norms = (layer.input_norm, layer.q_norm, layer.k_norm, layer.post_norm)
        return LayerWeights(
            *(self.vector(None if norm is None else norm.weight) for norm in norms),
            self.matrix(layer.qkv),
            self.matrix(layer.o),
            self.matrix(layer.gate_up, gated=True),
            self.matrix(layer.down),
            window,
        )


class NativeDecoder:
    """A compact decoder run by the kernels of `build` (waited for). Same call and results as `CompactDecoder`.

    The weights are copied into the kernels' order (fp32, bf16 or int8, as the decoder has them): the eager decoder
    may be dropped afterwards. Sums are fp32 in all three, and a row's results are the same bits at every width, in
    every batch and for every length of the mask. Not safe for concurrent calls that share a cache slot.
    Raises UnsupportedModel where `supports_native` says why not, PackageError when the build failed.
    """

    def __init__(self, decoder: CompactDecoder, build: Build, *, threads: int | None = None) -> None:
        shape = decoder.shape
        if reason := supports_native(shape):
            raise UnsupportedModel(reason)
        self.shape = shape
        self.threads = threads or torch.get_num_threads()
        self.library = build.library()
        self._weights = weights = PackedWeights(self.library)
        windows = list(dict.fromkeys(shape.windows))
        layers = [weights.layer(x, windows.index(w)) for x, w in zip(decoder.layers, shape.windows, strict=True)]
        self._layers = (LayerWeights * shape.layers)(*layers)
        embed = decoder.embed.detach().contiguous()
        self.model = Model(
            weights.pointer(embed),
            weights.vector(decoder.inv_freq),
            weights.vector(decoder.norm.weight),
            self._layers,
            weights.pointer(torch.tensor(shape.taps, dtype=torch.int64)),
            weights.pointer(torch.tensor([w or 0 for w in windows], dtype=torch.int64)),
            weights.matrix(decoder.head),
            shape.layers,
            shape.hidden,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            embed.shape[0],
            shape.vocab,
            len(shape.taps),
            len(windows),
            KINDS[embed.dtype],
            shape.eps,
            shape.rope_scale,
        )
        self.seconds = (c_double * len(PHASES))()
        self.timed = False

    def __call__(
        self,
        rows: PackedRows,
        keys: Tensor,  # fp32 or bf16 [B, layers, kv_heads, capacity, D], written in place
        values: Tensor,  # the same
        keep: Tensor | None = None,  # int64 [M], at most N: rows whose logits are wanted
    ) -> tuple[Tensor, Tensor]:
        """Logits fp32 [N or M, vocab] and features fp32 [N, taps * hidden] of the rows.

        Raises InvalidParameter for an index out of its range or a cache that is not contiguous.
        """
        n, s = rows.tokens.shape[0], self.shape
        kept = n if keep is None else keep.shape[0]
        logits = torch.empty(kept, s.vocab)
        features = torch.empty(n, len(s.taps) * s.hidden)
        if n == 0:
            return logits, features
        if not (keys.is_contiguous() and values.is_contiguous()) or keys.dtype != values.dtype:
            raise InvalidParameter("the cache's keys and values must be contiguous and of one dtype")
        if keys.dtype not in (torch.float32, torch.bfloat16):
            raise InvalidParameter(f"the kernels keep a cache in fp32 or bf16, not {keys.dtype}")
        # In the order of `Call`; `rows.table` says what `rows.flat` does.
        given = (
            *(rows.tokens, rows.positions, rows.slots, rows.places),
            *(rows.flat, keep, rows.mask, rows.key_positions),
        )
        inputs = [None if x is None else x.contiguous() for x in given]  # alive until the call returns
        call = Call(
            *(None if x is None else x.data_ptr() for x in inputs),
            keys.data_ptr(),
            values.data_ptr(),
            logits.data_ptr(),
            features.data_ptr(),
            self.seconds if self.timed else None,
            n,
            kept,
            *rows.mask.shape,
            keys.shape[3],
            KINDS[keys.dtype],
            self.threads,
        )
        if error := self.library.firesteel_forward(byref(self.model), byref(call)):
            raise InvalidParameter(f"a {ERRORS[error]} of the packed rows is out of its range")
        return logits, features
