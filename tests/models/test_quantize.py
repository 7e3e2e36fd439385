"""int8 codes and 16-bit activations: what is lost, and what is exact."""

from __future__ import annotations

import torch

from firesteel.models.compact import Linear
from firesteel.models.quantize import (
    Int8Linear,
    activation_limit,
    mean_kl,
    quantize,
    quantize_rows,
    quantize_weight,
)
from firesteel.models.weights import from_transformers
from tests.models.forest import forest_of, random_model, run


def test_no_sum_can_leave_an_int32():
    for cols in (1, 576, 1536, 4096, 14336, 53248):
        assert activation_limit(cols) * 127 * cols < 2**31
        assert activation_limit(cols) >= 255


def test_codes_and_scales_restore_the_weights():
    weight = torch.randn(7, 40) * torch.logspace(-6, 3, 7)[:, None]
    weight[3] = 0
    codes, scales = quantize_weight(weight)
    assert codes.dtype == torch.int8
    assert int(codes.min()) >= -127
    assert ((codes * scales[:, None] - weight).abs() <= scales[:, None] * 0.501).all()


def test_a_row_of_zeros_stays_zero():
    rows, scale = quantize_rows(torch.zeros(2, 8), 100)
    assert not rows.any()
    assert not scale.any()


def test_a_quantised_decoder_is_close_and_shares_what_it_keeps():
    decoder = from_transformers(random_model("qwen2"))
    small = quantize(decoder, keep=lambda name: name == "head")
    assert isinstance(small.head, Linear)
    assert isinstance(small.layers[2].down, Int8Linear)
    assert isinstance(decoder.layers[2].down, Linear)
    assert small.embed.data_ptr() == decoder.embed.data_ptr()
    forest = forest_of(97, [20], [9])
    want, _ = run(decoder, decoder.shape, *forest)
    got, _ = run(small, small.shape, *forest)
    assert 0 < mean_kl(want, got) < 1e-3


def test_mean_kl_of_equal_logits_is_zero():
    logits = torch.randn(3, 11)
    assert abs(mean_kl(logits, logits + 2.0)) < 1e-9
