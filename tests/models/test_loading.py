"""What a user may call a target, and what a wrong name gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from firesteel.default_target import DEFAULT_TARGET
from firesteel.errors import InvalidParameter, PromptTooLong, TargetNotFound, UnsupportedModel
from firesteel.model import Model
from firesteel.models import loading
from firesteel.models.compact import supports
from firesteel.models.target import TargetShape, refuse_reason
from firesteel.paths import cache_folder
from firesteel.sampling import SamplingParams
from tests import toys
from tests.models.forest import CONFIGS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model in the Hugging Face format with the default target's tokenizer."""
    path = tmp_path_factory.mktemp("model")
    toys.model(vocab_size=49152, hidden_size=32).save_pretrained(path)
    AutoTokenizer.from_pretrained(loading.resolve(DEFAULT_TARGET)).save_pretrained(path)
    return path


def test_a_folder_is_a_target(folder: Path) -> None:
    model = Model.load(str(folder), compiled=False)
    request = model.complete(
        model.encode("one two"), SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True), model.engine("tree")
    )
    assert len(request.output) == 4
    assert model.target.dtype == torch.float32


def test_the_default_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = loading.resolve(DEFAULT_TARGET)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)  # what converting again would call
    assert loading.resolve(DEFAULT_TARGET) == first


def test_loading_the_default_spares_the_slow_imports() -> None:
    script = "import sys\nfrom firesteel.models.loading import load\nload()\n"
    script += "assert not {'sympy', 'torch.distributed.tensor', 'transformers.modeling_utils'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_converted_folder_s_configuration_is_that_of_its_family(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder("targets") / "converted"
    CONFIGS[name]().save_pretrained(folder)
    ours, theirs = loading._configuration(str(folder)), AutoConfig.from_pretrained(folder)
    assert type(ours) is PretrainedConfig
    assert type(theirs) is not PretrainedConfig
    wanted = theirs.to_dict()
    for key in wanted.keys() - {"use_cache", "_name_or_path"}:
        assert getattr(ours, key) == wanted[key], key
    assert supports(ours) is refuse_reason(ours) is None
    assert TargetShape.of(ours) == TargetShape.of(theirs)


def test_a_folder_without_a_model_and_a_missing_name(tmp_path: Path) -> None:
    with pytest.raises(TargetNotFound, match=r"config.json"):
        loading.resolve(str(tmp_path))
    with pytest.raises(TargetNotFound, match="smollm9"):
        loading.resolve("smollm9")


def test_a_recurrent_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 2}')
    with pytest.raises(UnsupportedModel, match="rolled back"):
        loading.load(str(tmp_path))


def test_prompts_and_token_ids_are_checked(folder: Path) -> None:
    model = Model.load(str(folder), compiled=False)
    with pytest.raises(PromptTooLong, match=r"600 tokens.*512"):
        model.request([1] * 600, SamplingParams())
    with pytest.raises(InvalidParameter, match="49152"):
        model.request([49152], SamplingParams())
    with pytest.raises(InvalidParameter, match="60000"):
        model.request([1], SamplingParams(logit_bias={60000: 1.0}))


def test_an_interrupt_ends_a_reply_with_what_there_is(folder: Path) -> None:
    model, seen = Model.load(str(folder), compiled=False), []

    def interrupted(text: str) -> None:
        seen.append(text)
        if len(seen) == 3:
            raise KeyboardInterrupt

    engine = model.engine("off")
    params = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    request = model.complete(model.encode("one two"), params, engine, interrupted)
    assert len(request.output) == 3
    assert request.finish_reason == "abort"
    assert "".join(seen) == request.text.text
    assert engine.cache.free_slots == engine.cache.slots
