"""int8 codes of weights and activations: what is lost, and what is exact."""

from __future__ import annotations

import torch

from firesteel.models.compact import Linear
from firesteel.models.quantize import (
    Int8Linear,
    mean_kl,
    quantize,
    quantize_rows,
    quantize_weight,
)
from firesteel.models.weights import from_transformers
from tests.models.forest import forest_of, random_model, run


def test_codes_and_scales_restore_the_weights():
    weight = torch.randn(7, 40) * torch.logspace(-6, 3, 7)[:, None]
    weight[3] = 0
    codes, scales = quantize_weight(weight)
    assert codes.dtype == torch.int8
    assert int(codes.min()) >= -127
    assert ((codes * scales[:, None] - weight).abs() <= scales[:, None] * 0.501).all()


def test_codes_and_scales_restore_the_activations_by_groups_of_32():
    x = torch.randn(3, 80)
    x[:, 40] = 1000.0  # one large number costs its own group its precision, and no other
    codes, scales = quantize_rows(x)
    assert codes.shape == (3, 3, 32)
    assert scales.shape == (3, 3, 1)
    assert int(codes.abs().max()) == 127
    restored = (codes * scales).flatten(1)
    assert not restored[:, 80:].any()
    error = (restored[:, :80] - x).abs()
    assert (error[:, :32] <= 0.51 * x[:, :32].abs().amax(1, keepdim=True) / 127).all()
    assert error[:, 32:64].max() > 1.0


def test_a_row_of_zeros_stays_zero():
    codes, scales = quantize_rows(torch.zeros(2, 8))
    assert not codes.any()
    assert not scales.any()


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
