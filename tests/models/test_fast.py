"""A compact decoder as a target: what the engine asks of a forward beyond its rows."""

from __future__ import annotations

import pytest
import torch

from firesteel.models.fast import CompactTarget
from firesteel.models.hf import TransformersTarget
from firesteel.models.native import NativeDecoder
from firesteel.models.package import start_build
from firesteel.models.rows import pack
from firesteel.models.target import Target, TargetShape, new_cache
from firesteel.models.weights import from_transformers
from firesteel.tree import TokenTree
from tests import toys


@pytest.fixture(scope="module", params=["transformers", "compact", "native"])
def target(request: pytest.FixtureRequest) -> Target:
    model = toys.model(hidden_size=64, head_dim=16)
    if request.param == "transformers":
        return TransformersTarget(model, taps=(0, 1))
    decoder = from_transformers(model, taps=(0, 1))
    used = decoder if request.param == "compact" else NativeDecoder(decoder, start_build())
    return CompactTarget(used, TargetShape.of(model.config), torch.float32, model.device)


@pytest.mark.parametrize("keep", [[], [4], [0, 3], [0, 1, 2, 3, 4]])
def test_only_the_wanted_logits_are_computed(target: Target, keep: list[int]) -> None:
    """A prefill wants none at all; features and K/V are those of a full forward all the same."""
    rows = pack([TokenTree.chain(3, [5, 7, 9, 11])], [0], [0])
    caches = [new_cache(target, 1) for _ in range(2)]
    for cache in caches:
        cache.reserve([cache.acquire()], [5])
    everything, features = target.forward(rows, caches[0])
    wanted, same_features = target.forward(rows, caches[1], torch.tensor(keep, dtype=torch.int64))
    assert wanted.shape == (len(keep), toys.VOCAB)
    torch.testing.assert_close(wanted, everything[keep])
    torch.testing.assert_close(same_features, features)
    torch.testing.assert_close(caches[0].keys, caches[1].keys)
