"""The store through the front door: a toy target learns in one model and goes on in the next."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from firesteel.cli import app
from firesteel.cost.base import RoundCost
from firesteel.engine.drafter import NoDrafter, Replay
from firesteel.engine.engine import Engine
from firesteel.engine.stopwatch import Stopwatch
from firesteel.model import Model
from firesteel.models import identity
from firesteel.models.drafters.checkpoint import save_drafter
from firesteel.models.identity import owner
from firesteel.policy.adaspark import AdaSpark
from firesteel.rounds import RoundReport
from firesteel.sampling import SamplingParams
from firesteel.store.file import MOST_BYTES, read
from firesteel.store.memory import Memory
from tests import toys
from tests.train import toy_chat

PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_chat.save(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's store, for the length of a test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "firesteel" / "store"


def load(target: Path, **settings: Any) -> Model:
    return Model.load(str(target), device="cpu", compiled=False, drafter="ngram", **settings)


def learn(model: Model, engine: Engine) -> None:
    model.complete(model.encode("abcabcabcabc"), PARAMS, engine)


def rounds_in(store: Path) -> int:
    [file] = store.iterdir()
    return read(file).policies["adaspark"].rounds


def test_what_one_model_learned_the_next_one_knows(target: Path, store: Path) -> None:
    with load(target) as model:
        engine = model.engine()
        learn(model, engine)
    state = engine.policy.state()
    assert state["cost"]["laws"]
    [file] = store.iterdir()
    stored = read(file)
    assert file.name.startswith("toy-ngram-fp32-eager-")
    assert stored.owner.threads >= 1
    assert stored.owner.processor
    assert stored.policies["adaspark"].requests == 1
    assert load(target).engine().policy.state() == json.loads(json.dumps(state))
    assert file.stat().st_size < 1_000_000 < MOST_BYTES


def test_it_is_the_same_store_by_another_path_and_from_the_same_weights_elsewhere(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(target.parent)
    one, two = load(target), load(Path("toy"))
    assert owner(one.loaded, "fp32", compiled=False, drafter=None) == owner(
        two.loaded, "fp32", compiled=False, drafter=None
    )


def test_other_weights_have_another_store(target: Path, tmp_path: Path, store: Path) -> None:
    other = toy_chat.save(tmp_path / "toy", layers=2)
    for folder in (target, other):
        with load(folder) as model:
            learn(model, model.engine())
    assert len([*store.iterdir()]) == 2


def test_an_engine_that_is_gone_has_been_written(target: Path, store: Path) -> None:
    model = load(target)
    learn(model, model.engine())
    gc.collect()
    first = rounds_in(store)
    learn(model, model.engine())
    gc.collect()
    assert rounds_in(store) > first


def test_a_process_that_just_ends_has_written(target: Path, store: Path) -> None:
    script = f"""
from tests.store.test_model import learn, load
model = load({str(target)!r})
engine = model.engine()
learn(model, engine)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert rounds_in(store) > 0


def test_a_folder_takes_the_place_of_the_user_s_store(target: Path, store: Path, tmp_path: Path) -> None:
    with load(target, store=tmp_path / "mine") as model:
        learn(model, model.engine())
    assert rounds_in(tmp_path / "mine") > 0
    assert not store.exists()


@pytest.mark.parametrize("case", ["no store", "off", "tree", "somebody's drafter", "nothing decoded"])
def test_where_nothing_is_written(target: Path, store: Path, case: str) -> None:
    with load(target, store=case != "no store") as model:
        policy = case if case in ("off", "tree") else "auto"
        drafter = Replay({"request-0": [5] * 24}, 98) if case == "somebody's drafter" else None
        engine = model.engine(policy, drafter=drafter)
        if case != "nothing decoded":
            learn(model, engine)
    assert not store.exists()


def test_a_drafter_has_a_store_of_its_own(tmp_path: Path, store: Path) -> None:
    target = toy_chat.save(tmp_path / "toy", layers=3)
    of = toys.model(num_hidden_layers=3, vocab_size=98)
    drafter = toys.drafter_model(of)
    save_drafter(drafter, drafter.config, tmp_path / "its-drafter")
    named = str(tmp_path / "its-drafter")
    with Model.load(str(target), device="cpu", compiled=False, drafter=named) as model:
        learn(model, model.engine())
        learn(model, model.engine(drafter=NoDrafter()))
    with load(target) as model:
        learn(model, model.engine())
    files = sorted(one.name.rpartition("-")[0] for one in store.iterdir())
    assert files == ["toy-its_drafter-fp32-eager", "toy-ngram-fp32-eager"]


def test_compiled_and_eager_threads_and_dtypes_have_stores_of_their_own(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "kernels", lambda: "0123")
    loaded = load(target).loaded
    owners = [owner(loaded, dtype, compiled=it, drafter=None) for dtype in ("fp32", "int8") for it in (False, True)]
    monkeypatch.setattr(identity.torch, "get_num_threads", lambda: 64)
    owners.append(owner(loaded, "fp32", compiled=True, drafter=None))
    assert len({one.file_name() for one in owners}) == 5
    assert owners[1].engine.endswith("kernels 0123")


def test_a_hub_id_s_weights_are_those_in_the_hub_s_cache(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(target).loaded
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: str(target / file))
    hub = owner(replace(loaded, name="some/toy", folder="some/toy"), "fp32", compiled=False, drafter=None)
    assert hub.target_weights == owner(loaded, "fp32", compiled=False, drafter=None).target_weights
    assert hub.target == "some/toy"


def test_no_drafter_by_name_or_by_hand_is_the_same_store(target: Path, store: Path) -> None:
    with load(target) as model:
        learn(model, model.engine())
        learn(model, model.engine(drafter=NoDrafter()))
    assert len([*store.iterdir()]) == 1


def test_a_cache_folder_that_cannot_be_written_is_a_line_and_no_failure(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    model = load(target)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said: list[str] = []
    model = replace(model, store=tmp_path / "file" / "store", say=said.append)
    with model:
        learn(model, model.engine())
    assert len(said) == 1
    assert "adaspark learned is not kept" in said[0]


def test_a_damaged_store_is_a_line_and_learning_starts_from_empty(target: Path, store: Path) -> None:
    with load(target) as model:
        learn(model, model.engine())
    [file] = store.iterdir()
    file.write_text("{")
    said: list[str] = []
    with load(target, say=said.append) as model:
        said.clear()
        engine = model.engine()
        assert engine.policy.state() == AdaSpark().state()
        learn(model, engine)
    assert len(said) == 1
    assert str(file) in said[0]
    assert sorted(len(one.suffixes) for one in store.iterdir()) == sorted([len(file.suffixes), len(file.suffixes) + 1])
    assert read(file).policies["adaspark"].requests == 1


def test_what_keeping_costs_is_in_no_round_s_time() -> None:
    """A clock that passes only while something is kept: no round has lasted."""
    seconds, reports = [0.0], []

    def keep(ended: int) -> None:
        seconds[0] += 1000.0

    def record(report: RoundReport) -> None:
        reports.append(report)

    of = toys.target()
    engine = Engine(of, AdaSpark(), record=record, learned=keep)
    engine.watch = Stopwatch(lambda: seconds[0])
    for _ in engine.run([toys.request([1, 2, 3], "a"), toys.request([4, 5], "b", max_tokens=9)]):
        pass
    assert len(reports) > 5
    assert seconds[0] == 1000.0 * len(reports)
    assert {part for one in reports for part in (one.draft_ms, one.verify_ms, one.other_ms)} == {0.0}


def test_the_engine_says_how_many_requests_ended() -> None:
    ended: list[int] = []
    engine = Engine(toys.target(), AdaSpark(), learned=ended.append)
    for _ in engine.run([toys.request([1, 2, 3], name, max_tokens=9) for name in "abc"]):
        pass
    assert sum(ended) == 3
    assert ended[0] == 0


def test_a_long_service_has_a_small_state(tmp_path: Path, target: Path) -> None:
    """`adaspark` after contexts and batches of every size: far below the megabyte that a file may have."""
    policy = AdaSpark()
    for bits in range(1, 18):
        for rows in range(1, 65):
            for took in range(20):
                policy.cost.learn(RoundCost(rows, float(2**bits - 1), 1.0 + rows + took, 1.0, rows, False))
            policy.chooser.rates.learn((bits, rows), 2.0, 1.0)
    assert len(policy.state()["cost"]["laws"]) >= 7
    whose = owner(load(target).loaded, "fp32", compiled=False, drafter=None)
    memory = Memory(policy, tmp_path, whose)
    memory.after(1)
    memory.save()
    assert memory.file.stat().st_size < 200_000


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments], catch_exceptions=False, env={"COLUMNS": "240"})


def generate(target: Path, *more: str) -> Any:
    common = ("--target", str(target), "--drafter", "ngram", "--eager", "--raw", "--max-tokens", "8", "--ignore-eos")
    return run("generate", "abcabc", *common, *more)


def test_generate_keeps_what_it_learned_unless_told_not_to(target: Path, store: Path) -> None:
    assert generate(target, "--no-store").exit_code == 0
    assert not store.exists()
    assert generate(target).exit_code == 0
    first = rounds_in(store)
    assert generate(target).exit_code == 0
    assert rounds_in(store) > first


def test_benchmarks_start_from_nothing_and_leave_the_user_s_store_alone(
    target: Path, store: Path, tmp_path: Path
) -> None:
    generate(target)
    [file] = store.iterdir()
    before = file.read_bytes()
    common = ("--target", str(target), "--eager", "--limit", "1", "--max-tokens", "4", "--policies", "off,auto")
    assert run("bench", "decode", *common).exit_code == 0
    assert file.read_bytes() == before
    assert run("bench", "decode", *common, "--store", str(tmp_path / "warm")).exit_code == 0
    assert rounds_in(tmp_path / "warm") > 0
    assert file.read_bytes() == before
