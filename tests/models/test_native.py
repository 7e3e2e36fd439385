"""The kernels compute what the compact decoder computes, and a row's bits depend on that row alone."""

from __future__ import annotations

import ctypes
import platform
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from firesteel import processor
from firesteel.errors import InvalidParameter, UnsupportedModel
from firesteel.models import package
from firesteel.models.compact import Linear
from firesteel.models.native import NativeDecoder, PackedWeights
from firesteel.models.package import start_build
from firesteel.models.quantize import GROUP, Int8Linear, quantize, quantize_rows
from firesteel.models.weights import from_transformers
from tests.models.forest import CONFIGS, Request, cache, forest_of, pack, random_model, run

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")
KINDS = ("fp32", "bf16", "int8")


@pytest.fixture(scope="module")
def build():
    """One build for most tests, from the user's cache when it is there."""
    build = start_build()
    build.library()
    return build


@pytest.fixture(scope="module", params=["native", "x86-64-v3", "x86-64"])
def any_build(request):
    """This processor's instructions, AVX2's and none in particular: the kernels have a way for each."""
    if request.param == "native":
        yield request.getfixturevalue("build")
        return
    if platform.machine() != "x86_64":
        pytest.skip("for this processor there is one way")
    if request.param == "x86-64-v3" and not {"avx2", "fma"} <= set(processor.value("flags").split()):
        pytest.skip("this processor has no AVX2")
    changes = {"-march=native": f"-march={request.param}", "-O3": "-O1" if request.param == "x86-64-v3" else "-O0"}
    with pytest.MonkeyPatch.context() as patch:
        ours = package.command
        patch.setattr(package, "command", lambda output: [changes.get(part, part) for part in ours(output)])
        package.key.cache_clear()
        build = start_build()
        build.library()
        yield build
    package.key.cache_clear()


def decoder_of(kind: str, name: str = "llama", taps: tuple[int, ...] = (), **changes):
    model = random_model(name, **{"head_dim": 16} | changes)
    if kind == "bf16":
        model = model.bfloat16()
    decoder = from_transformers(model, taps=taps)
    return quantize(decoder) if kind == "int8" else decoder


@pytest.mark.parametrize("batch", [([30], [64]), ([3, 150, 12], [9, 1, 5])], ids=["one", "three"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_eager_twin(build, name, kind, batch):
    eager = decoder_of(kind, name, taps=(1, 0))
    native = NativeDecoder(eager, build)
    forest = forest_of(97, *batch)
    want = run(eager, eager.shape, *forest, dtype=torch.bfloat16 if kind == "bf16" else torch.float32)
    got = run(native, eager.shape, *forest)
    # int8: a last bit before a rounding moves an activation by one of its 127 steps; bf16: eager rounds everything
    tolerance = {"fp32": 1e-5, "int8": 1e-2, "bf16": 3e-2}[kind]
    for mine, theirs in zip(got, want, strict=True):
        assert torch.allclose(mine, theirs.float(), atol=tolerance, rtol=tolerance)


def product_by_groups(x: torch.Tensor, linear: Int8Linear) -> torch.Tensor:
    """The kernels' sums to the last bit: exact within a group, and one fused multiply-add per group, in order."""
    codes, scales = quantize_rows(x)
    weights = torch.nn.functional.pad(linear.codes.double(), (0, -x.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    total = np.zeros((x.shape[0], weights.shape[0]), np.float32)
    for g in range(codes.shape[1]):
        sums = (codes[:, g].double() @ weights[:, g].T).numpy().astype(np.longdouble)  # of at most 20 bits
        total = (sums * scales[:, g].numpy() + total).astype(np.float32)
    return torch.from_numpy(total) * linear.scales + linear.bias


@pytest.mark.parametrize("shape", [(32, 48), (50, 90), (16, 1536), (80, 33)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_product_alone(any_build, kind, shape):
    """Against float64: exact for int8, whose integer sums do not round."""
    out, cols = shape
    torch.manual_seed(1)
    build = any_build
    weight, bias = torch.randn(out, cols), torch.randn(out)
    linear = {
        "fp32": lambda: Linear(weight, bias),
        "bf16": lambda: Linear(weight.bfloat16(), bias.bfloat16()),
        "int8": lambda: Int8Linear(weight, bias),
    }[kind]()
    packed = PackedWeights(build.library())
    matrix = packed.matrix(linear)
    for n in (1, 2, 3, 5, 7, 8, 13, 32, 64):
        x = torch.randn(n, cols) * torch.logspace(-3, 3, n)[:, None]
        if kind == "int8":
            want = product_by_groups(x, linear)
        else:
            want = (x.double() @ linear.weight.double().T + linear.bias.double()).float()
        padded = torch.nn.functional.pad(x, (0, matrix.cols - cols)).contiguous()
        got = torch.empty(n, matrix.outputs)
        build.library().firesteel_product(
            ctypes.byref(matrix),
            ctypes.c_void_p(padded.data_ptr()),
            ctypes.c_int64(n),
            ctypes.c_int32(2),
            ctypes.c_void_p(got.data_ptr()),
        )
        assert not got[:, out:].any()
        if kind == "int8":
            assert torch.equal(got[:, :out], want)
        else:
            assert torch.allclose(got[:, :out], want, rtol=1e-4, atol=1e-3 * float(want.abs().max()))


def test_the_largest_sums_do_not_overflow(any_build):
    """All codes at their limits: a product that saturates at 16 bits shows."""
    for weight_sign in (1.0, -1.0):
        linear = Int8Linear(torch.full((16, 1536), weight_sign))
        packed = PackedWeights(any_build.library())
        matrix = packed.matrix(linear)
        for sign in (1.0, -1.0):
            x, got = torch.full((6, 1536), sign), torch.empty(6, 16)
            pointers = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(got.data_ptr())
            any_build.library().firesteel_product(
                ctypes.byref(matrix), pointers[0], ctypes.c_int64(6), ctypes.c_int32(1), pointers[1]
            )
            assert torch.allclose(got, torch.full_like(got, 1536 * sign * weight_sign), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_and_wide_verifies_agree_bit_for_bit(build, kind):
    """One row at a time, in threes, all at once, in a batch, under a longer mask: always the same bits."""
    decoder = NativeDecoder(decoder_of(kind, "qwen3"), build)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(97, (190,), generator=generator).tolist()
    context, total = 150, 190

    def chain(width: int, multiple: int, slots: int, threads: int) -> tuple[torch.Tensor, torch.Tensor]:
        decoder.threads = threads
        keys, values = cache(decoder.shape, slots, 512)
        requests = [Request() for _ in range(slots)]
        for request in requests[1:]:
            request.grow([-1], [5])
        logits, done = [], 0
        while done < total:
            step = min(context, total) - done if done < context else min(width, total - done)
            rows = requests[0].grow(list(range(done - 1, done + step - 1)), tokens[done : done + step])
            rows = [rows, *([0] for _ in requests[1:])]
            out, _ = decoder(pack(requests, rows, multiple), keys, values)
            if done >= context:
                logits.append(out[:step])
            done += step
        return torch.cat(logits), keys[0, :, :, :total]

    want = chain(1, 64, 1, 1)
    for width, multiple, slots, threads in ((3, 64, 1, 2), (7, 16, 1, 1), (40, 64, 1, 2), (8, 256, 3, 2)):
        got = chain(width, multiple, slots, threads)
        assert all(map(torch.equal, got, want)), (width, multiple, slots, threads)


@pytest.mark.parametrize("context", [5, 100, 120, 126, 127, 128, 200])
@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "qwen2"])
def test_a_branch_has_the_bits_of_a_chain(build, context, name):
    """Wherever siblings push a row: within a chunk of places, across its end (128) and through a sliding window."""
    decoder = NativeDecoder(decoder_of("fp32", name, taps=(0, 2)), build)
    generator = torch.Generator().manual_seed(context)
    requests, prompts, rows = forest_of(97, [context], [40], seed=context)
    request, places = requests[0], rows[0]
    logits, features = run(decoder, decoder.shape, requests, prompts, rows)
    moved = 0
    for leaf in torch.randperm(40, generator=generator)[:12].tolist():
        path = request.path(places[leaf])
        moved += path[-1] != len(path) - 1
        alone = Request()
        alone.grow(list(range(-1, len(path) - 1)), [request.tokens[place] for place in path])
        chain = list(range(context, len(path)))
        want = run(decoder, decoder.shape, [alone], prompts, [chain])
        mine = [places.index(place) for place in path[context:]]
        assert torch.equal(logits[mine], want[0]), leaf
        assert torch.equal(features[mine], want[1]), leaf
    assert moved > 5


def test_a_bfloat16_cache_and_rows_to_keep(build):
    decoder = decoder_of("int8", "qwen2")
    native = NativeDecoder(decoder, build)
    requests, prompts, rows = forest_of(97, [30, 9], [4, 6])
    want, _ = run(native, decoder.shape, requests, prompts, rows)
    got, _ = run(native, decoder.shape, requests, prompts, rows, dtype=torch.bfloat16)
    assert torch.allclose(got, want, atol=2e-2)
    assert not torch.equal(got, want)
    keys, values = cache(decoder.shape, 2, 64)
    packed = pack(requests, rows)
    keep = torch.tensor([7, 0])
    for model in (decoder, native):
        everything, _ = model(packed, keys, values)
        assert torch.allclose(model(packed, keys, values, keep)[0], everything[keep], atol=1e-5)


def test_no_rows_and_rows_out_of_range(build):
    decoder = NativeDecoder(decoder_of("fp32"), build)
    requests, _, rows = forest_of(97, [5], [3])
    packed = pack(requests, rows)
    keys, values = cache(decoder.shape, 1, 64)
    empty = {name: getattr(packed, name)[:0] for name in ("tokens", "positions", "slots", "places", "flat")}
    logits, features = decoder(replace(packed, **empty), keys, values)
    assert logits.shape == (0, 97)
    assert features.shape == (0, 0)
    for name, value in {"tokens": 97, "slots": 1, "places": 64, "flat": 3}.items():
        broken = replace(packed, **{name: torch.full_like(getattr(packed, name), value)})
        with pytest.raises(InvalidParameter, match="out of its range"):
            decoder(broken, keys, values)
    with pytest.raises(InvalidParameter, match="length"):
        decoder(packed, keys[:, :, :, :32].contiguous(), values[:, :, :, :32].contiguous())
    with pytest.raises(InvalidParameter, match="contiguous"):
        decoder(packed, keys.transpose(1, 2), values)


def test_a_head_of_odd_size_is_refused(build):
    with pytest.raises(UnsupportedModel, match="multiple of 16"):
        NativeDecoder(decoder_of("fp32", head_dim=8), build)
