"""The compact decoder computes what transformers computes, for every tree of every request of a batch."""

from __future__ import annotations

import pytest
import torch
from transformers import GemmaConfig, LlamaConfig

from firesteel.errors import UnsupportedModel
from firesteel.models.compact import supports
from firesteel.models.rows import PackedRows
from firesteel.models.weights import from_transformers
from tests.models.forest import CONFIGS, cache, forest_of, pack, random_model, run

BATCHES = {"one request": ([11], [7]), "wide": ([20], [40]), "three requests": ([3, 21, 12], [9, 1, 5])}


def expected(model, requests, rows):
    """Logits and all layers' outputs of each row, from transformers run on the row's own path."""
    logits, hidden = [], []
    for request, mine in zip(requests, rows, strict=True):
        for place in mine:
            tokens = torch.tensor([[request.tokens[p] for p in request.path(place)]])
            out = model.model(tokens, output_hidden_states=True)
            logits.append(model.lm_head(out.last_hidden_state[0, -1]))
            hidden.append(torch.stack([h[0, -1] for h in out.hidden_states]))
    return torch.stack(logits), torch.stack(hidden)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(name, batch):
    model = random_model(name)
    compact = from_transformers(model, taps=(1, 0))
    requests, prompts, rows = forest_of(97, *BATCHES[batch])
    with torch.inference_mode():
        logits, features = run(compact, compact.shape, requests, prompts, rows)
        want, hidden = expected(model, requests, rows)
    assert torch.allclose(logits, want, atol=1e-4, rtol=1e-4)
    assert torch.allclose(features, torch.cat([hidden[:, 2], hidden[:, 1]], dim=-1), atol=1e-4, rtol=1e-4)


def test_without_taps_there_are_no_features():
    compact = from_transformers(random_model("llama"))
    requests, prompts, rows = forest_of(97, [4], [3])
    _, features = run(compact, compact.shape, requests, prompts, rows)
    assert features.shape == (3, 0)


def test_weights_are_shared_where_nothing_is_fused():
    model = random_model("llama")
    compact = from_transformers(model)
    assert compact.embed.data_ptr() == model.model.embed_tokens.weight.data_ptr() == compact.head.weight.data_ptr()


def test_an_unknown_family_is_refused_with_a_reason():
    assert supports(LlamaConfig()) is None
    assert "gemma" in supports(GemmaConfig())
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert "dynamic" in supports(LlamaConfig(rope_parameters=rope))
    assert "gelu" in supports(LlamaConfig(hidden_act="gelu"))
    with pytest.raises(UnsupportedModel, match="layer 9"):
        from_transformers(random_model("llama"), taps=[9])


ROWS = ("tokens", "positions", "slots", "places", "table", "flat", "mask", "key_positions")


class Exportable(torch.nn.Module):
    """A compact decoder whose arguments are tensors."""

    def __init__(self, decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, rows: dict[str, torch.Tensor], keys: torch.Tensor, values: torch.Tensor):
        return self.decoder(PackedRows(**rows, first_slot=0), keys, values)


def test_it_can_be_exported():
    """The graph takes any number of rows: an accidental int() of a size would fix it to the example's."""
    compact = from_transformers(random_model("qwen3"), taps=(1,))
    requests, _, rows = forest_of(97, [5, 90], [3, 4])
    packed = pack(requests, rows)
    inputs = ({name: getattr(packed, name) for name in ROWS}, *cache(compact.shape, 2, 192))
    n, b, r = (torch.export.Dim(name, min=2) for name in ("n", "b", "r"))
    s, c = 64 * torch.export.Dim("s64", min=1), torch.export.Dim("c", min=65)
    dims = {
        **{name: {0: n} for name in ROWS},
        "table": {0: b, 1: r},
        "mask": {0: b, 1: r, 2: s},
        "key_positions": {0: b, 1: s},
    }
    kv = {0: b, 3: c}
    exported = torch.export.export(Exportable(compact), inputs, dynamic_shapes=(dims, kv, kv)).module()
    other, _, _ = forest_of(97, [30, 2, 70], [5, 9, 1])
    mine, theirs = cache(compact.shape, 3, 256), cache(compact.shape, 3, 256)
    packed = pack(other, [list(range(len(o.tokens))) for o in other])
    got = exported({name: getattr(packed, name) for name in ROWS}, *mine)
    want = compact(packed, *theirs)
    assert torch.allclose(got[0], want[0], atol=1e-5)
    assert torch.equal(mine[0], theirs[0])
