"""Which drafter a target gets when nobody names one, and when somebody does. Nothing is fetched here."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest

from firesteel import model as front
from firesteel.errors import InvalidParameter, TargetNotFound
from firesteel.model import Model
from firesteel.models.drafters.checkpoint import save_drafter
from tests import toys
from tests.train import toy_chat


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def load(target: Path, drafter: str | None = None) -> tuple[Model, list[str]]:
    """A loaded target and what was said on the way."""
    said: list[str] = []
    return Model.load(str(target), device="cpu", compiled=False, drafter=drafter, say=said.append), said


def stored_drafter(folder: Path, **changes: int) -> str:
    """A drafter for targets of `toy_chat`, on disk."""
    of = toys.model(num_hidden_layers=3, vocab_size=98, **changes)
    drafter = toys.drafter_model(of)
    save_drafter(drafter, drafter.config, folder)
    return str(folder)


def test_a_target_that_nobody_knows_drafts_from_its_text(tmp_path: Path) -> None:
    model, said = load(toy_chat.save(tmp_path / "my-own-model"))
    assert model.drafter is None
    assert model.engine().drafter.name == "ngram"
    assert len(said) == 1
    assert "my-own-model" in said[0]
    assert "n-grams" in said[0]


def test_a_known_drafter_that_cannot_be_fetched_is_a_line(tmp_path: Path) -> None:
    model, said = load(toy_chat.save(tmp_path / "Qwen3-4B"))
    assert model.drafter is None
    assert len(said) == 1
    assert "deepseek-ai/dspark_qwen3_4b_block7" in said[0]
    assert "n-grams" in said[0]


@pytest.mark.parametrize(("changes", "fault"), [({"hidden_size": 64}, "width 64"), (None, "config.json")])
def test_a_known_drafter_that_does_not_fit_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int] | None, fault: str
) -> None:
    """Another model of the same name, or a damaged cache: the user asked for the target alone."""
    folder = tmp_path / "drafter"
    if changes is None:
        folder.mkdir()
        (folder / "config.json").write_text("{")
    else:
        stored_drafter(folder, **changes)
    monkeypatch.setattr(front, "drafter_for", lambda name: str(folder))
    model, said = load(toy_chat.save(tmp_path / "target", layers=3))
    assert model.drafter is None
    assert fault in said[-1]
    assert "n-grams" in said[-1]


def test_a_known_drafter_that_is_there_is_used_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stored_drafter(tmp_path / "drafter")
    monkeypatch.setattr(front, "drafter_for", lambda name: folder)
    target = toy_chat.save(tmp_path / "target", layers=3)
    model, _ = load(target)
    assert model.drafter is not None
    assert model.drafter.name == folder
    assert model.engine().drafter.name == "dspark"
    assert model.engine("off").drafter.name == "ngram"
    assert load(target, "ngram")[0].drafter is None


@pytest.mark.parametrize(
    ("drafter", "error", "fault"),
    [
        ("nowhere", InvalidParameter, "'nowhere'"),
        ("./nowhere", TargetNotFound, r"'\./nowhere'"),
        ("no/where", TargetNotFound, "'no/where'"),
    ],
)
def test_a_named_drafter_that_is_not_there_is_an_error(
    tmp_path: Path, drafter: str, error: type[Exception], fault: str
) -> None:
    with pytest.raises(error, match=fault):
        load(toy_chat.save(tmp_path / "target", layers=3), drafter)


def test_a_named_drafter_of_another_target_is_an_error(tmp_path: Path) -> None:
    drafter = stored_drafter(tmp_path / "drafter", hidden_size=64)
    with pytest.raises(InvalidParameter, match="width 64"):
        load(toy_chat.save(tmp_path / "target", layers=3), drafter)
