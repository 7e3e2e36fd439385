"""`firesteel train drafter` and what is done with its result, end to end, as a user meets them; on a toy target."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from firesteel import cli
from firesteel.bench.decode import parse_arms, run, summary
from firesteel.bench.prompts import held_out
from firesteel.errors import FiresteelError, InvalidParameter
from firesteel.model import Model
from firesteel.sampling import SamplingParams
from firesteel.train.commands import _weights
from firesteel.train.conversations import Conversation, read_folder, write_shard
from tests.train import toy_chat

QUICK = ["--dtype", "fp32", "--eager", "--device", "cpu"]
STEPS = 40


@pytest.fixture(scope="module", autouse=True)
def _lessons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_chat.save(tmp_path_factory.mktemp("target"), layers=4)


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Replies of the target, greedy and drawn."""
    model = Model.load(str(target), device="cpu", compiled=False, drafter="ngram")
    made = []
    for number in range(16):
        ids = model.encode_chat([{"role": "user", "content": f"What about {number}?"}])
        temperature = float(number % 4 == 3)
        params = SamplingParams(temperature=temperature, seed=number, max_tokens=24, ignore_eos=True)
        request = model.complete(ids, params, model.engine("off"))
        made.append(Conversation(np.array([*ids, *request.output]), len(ids), temperature, number))
    folder = tmp_path_factory.mktemp("data")
    write_shard(folder / "shard00_0000.npz", made)
    return folder


def train(target: Path, data: Path, output: Path, *more: object, **changes: object) -> Any:
    """The command in this process, which has imported torch already; errors come out of it as they are."""
    options = {
        "target": target, "data": data, "output": output, "steps": STEPS, "layers": 1, "block": 3, "anchors": 16,
        "markov-rank": 8, "warmup": 5, "learning-rate": 3e-3, "every": 25, "teacher-dtype": "fp32", "device": "cpu",
        "mask-token": 60,
    }  # fmt: skip
    options |= {name.replace("_", "-"): value for name, value in changes.items()}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    arguments = ["train", "drafter", *words, "--eager", *map(str, more)]
    return CliRunner().invoke(cli.app, arguments, catch_exceptions=False)


@pytest.fixture(scope="module")
def trained(target: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "a" / "run"
    done = train(target, data, output)
    assert done.exit_code == 0, done.stderr
    assert "13 conversations to train on, 3 to validate on" in done.stderr
    assert "weights of the target's last 1 layers" in done.stderr
    assert f"step {STEPS}, " in done.stderr
    return output


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_state_its_log_and_a_drafter(trained: Path) -> None:
    expected = {"start.pt", "state.pt", "log.jsonl", "drafter"}
    if importlib.util.find_spec("matplotlib"):
        expected.add("curve.svg")
    assert {file.name for file in trained.iterdir()} == expected
    assert {file.name for file in (trained / "drafter").iterdir()} == {"config.json", "model.safetensors"}
    lines = log_of(trained)
    assert [line["step"] for line in lines if "loss" in line] == [10, 20, 30, 40]
    assert [line["step"] for line in lines if "validation" in line] == [25, STEPS]
    assert lines[-1]["validation"]["tokens_per_round"] > 1


def test_what_is_done_is_not_done_again(target: Path, data: Path, trained: Path) -> None:
    before = (trained / "state.pt").stat().st_mtime_ns, log_of(trained)
    done = train(target, data, trained)
    assert f"going on from step {STEPS}" in done.stderr
    assert "weights of" not in done.stderr
    assert ((trained / "state.pt").stat().st_mtime_ns, log_of(trained)) == before


def test_a_run_that_was_stopped_goes_on_to_where_a_whole_one_gets(
    target: Path, data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10_000))
    with monkeypatch.context() as patch:
        patch.setattr("firesteel.train.commands.time.monotonic", lambda: next(clock))
        done = train(target, data, tmp_path / "run", seconds=7)
    stopped = torch.load(tmp_path / "run" / "state.pt", weights_only=True)["step"]
    assert 0 < stopped < STEPS
    assert f"step {stopped}, " in done.stderr
    done = train(target, data, tmp_path / "run", seconds=1000)
    assert f"going on from step {stopped}" in done.stderr
    whole, parts = (
        torch.load(folder / "state.pt", weights_only=True)["pupil"] for folder in (trained, tmp_path / "run")
    )
    assert whole.keys() == parts.keys()
    for name in whole:
        assert torch.equal(whole[name], parts[name]), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": 2}, "another layers"),
        ({"block": 4, "vocab": 50}, "another block, vocab"),
        ({"seed": 5}, "another seed"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(
    target: Path, data: Path, trained: Path, changes: dict[str, int], said: str
) -> None:
    before = (trained / "state.pt").stat().st_mtime_ns
    with pytest.raises(InvalidParameter, match=said):
        train(target, data, trained, **changes)
    assert (trained / "state.pt").stat().st_mtime_ns == before


def test_another_target_in_the_same_folder_is_refused(data: Path, trained: Path, tmp_path: Path) -> None:
    other = toy_chat.save(tmp_path / "other", layers=4)
    with pytest.raises(InvalidParameter, match="another target"):
        train(other, data, trained)


def test_data_that_came_later_is_trained_on_and_what_was_validated_on_is_not(
    target: Path, data: Path, tmp_path: Path
) -> None:
    train(target, data, tmp_path / "run", steps=2)
    chosen = torch.load(tmp_path / "run" / "start.pt", weights_only=True)["validation"]
    more = [replace(one, ids=one.ids[:-1]) for one in read_folder(data)]
    write_shard(tmp_path / "shard00_0000.npz", more)
    done = train(target, data, tmp_path / "run", "--data", tmp_path, steps=2)
    assert "29 conversations to train on, 3 to validate on" in done.stderr
    assert torch.load(tmp_path / "run" / "start.pt", weights_only=True)["validation"] == chosen


def test_more_layers_than_the_target_has_begin_at_random(target: Path, data: Path, tmp_path: Path) -> None:
    done = train(target, data, tmp_path / "run", steps=1, layers=5)
    assert "random weights: the target has only 4 layers" in done.stderr


def test_lessons_of_a_changed_folder_are_not_those_of_the_old_one(target: Path, tmp_path: Path) -> None:
    names = set()
    for seed, folder in enumerate((tmp_path / "a", tmp_path / "a", tmp_path / "b")):
        toy_chat.save(folder, layers=1 + seed)
        names.add(_weights(Model.load(str(folder), device="cpu", compiled=False).loaded))
    assert len(names) == 3


def stopped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    """What the real entry point says on standard error when it ends with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["firesteel", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kind", "dsparkle"], "did you mean 'dspark'"),
        (["--start", "zero"], "unknown start 'zero'"),
        (["--taps", "1,b"], "got '1,b'"),
        (["--taps", "1,0"], "rise from 0, unlike [1, 0]"),
        (["--taps", "0,3"], "tap 3 is not below the last of the target's 4 layers"),
        (["--vocab", "100000"], "draft vocabulary of 100000"),
        (["--kind", "dflash2", "--vocab", "50"], "no reduced one"),
        (["--mask-token", "-3"], "-3"),
        (["--mask-token", "100000"], "100000"),
        (["--teacher-dtype", "fp23"], "did you mean 'fp32'"),
        (["--limit", "1"], "1 conversations are too few"),
        (["--learning-rate", "-1"], "Invalid value"),
    ],
)
def test_bad_choices_are_one_sentence(target, data, tmp_path, capsys, monkeypatch, options, said) -> None:
    basics = ["--target", target, "--data", data, "--output", tmp_path / "run", "--eager", "--device", "cpu"]
    assert said in stopped(capsys, monkeypatch, "train", "drafter", *basics, *options)
    assert not (tmp_path / "run").exists()


def test_bad_data_is_one_sentence(target, data, tmp_path, capsys, monkeypatch) -> None:
    def said(folder: Path) -> str:
        options = ["--target", target, "--data", folder, "--output", tmp_path / "run", "--eager", "--device", "cpu"]
        return stopped(capsys, monkeypatch, "train", "drafter", *options)

    assert "no shard*.npz in" in said(tmp_path)
    (tmp_path / "shard00_0000.npz").write_bytes(b"not a shard")
    assert "shard00_0000.npz is not a shard" in said(tmp_path)
    good = list(read_folder(data))
    sampled, foreign = tmp_path / "sampled", tmp_path / "foreign"
    write_one(sampled, [one for one in good if one.temperature > 0])
    assert "none of 4 conversations is greedy" in said(sampled)
    write_one(foreign, [good[0], replace(good[1], ids=good[1].ids + 90)])
    assert "shard00_0000.npz, conversation 1: a token id is not in 0..97" in said(foreign).replace("\n", "")
    assert not (tmp_path / "run").exists()


def write_one(folder: Path, conversations: list[Conversation]) -> None:
    folder.mkdir()
    write_shard(folder / "shard00_0000.npz", conversations)


def test_the_drafter_decodes_as_plain(target: Path, trained: Path) -> None:
    model = Model.load(str(target), device="cpu", compiled=False, drafter=str(trained / "drafter"))
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    for turn in ("What about 3?", "Why?"):
        ids = model.encode_chat([{"role": "user", "content": turn}])
        plain = model.complete(ids, params, model.engine("off"))
        engine = model.engine("chain", width=4)
        chain = model.complete(ids, params, engine)
        assert engine.drafter.name == "dspark"
        assert chain.output == plain.output
        assert chain.speculation.offered > 0


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each file's four lines, two are held out."""
    folder = tmp_path_factory.mktemp("prompts")
    for source, turns in (("mine", ["Why?"]), ("yours", ["How so?", "And then?"])):
        lines = [{"id": f"{source}-{number}", "source": source, "turns": turns} for number in range(4)]
        (folder / f"{source}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_eval_says_how_far_chains_get(target: Path, trained: Path, prompts: Path, tmp_path: Path) -> None:
    options = ["--target", target, "--drafter", trained / "drafter", "--prompts", prompts, *QUICK]
    options += ["--max-tokens", "16", "--temperatures", "0,1", "--output", tmp_path, "--json"]
    done = CliRunner().invoke(cli.app, ["eval", *map(str, options)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert json.loads((tmp_path / "drafter.json").read_text()) == result
    assert {"drafter", "settings", "tokens_per_round", "sources", "temperatures", "command", "machine"} == set(result)
    assert result["drafter"] == str(trained / "drafter")
    assert result["settings"]["target"] == str(target)
    assert [one["temperature"] for one in result["temperatures"]] == [0.0, 1.0]
    assert result["sources"] == result["temperatures"][0]["sources"]
    assert set(result["sources"]) == {"mine", "yours"}
    for one in (*result["sources"].values(), *result["temperatures"]):
        assert {"tokens_per_round", "rounds", "tokens", "acceptance", "acceptance_unconditional"} <= set(one)
        assert set(one["confidence"]) == {"mean", "accepted", "ece", "auc", "brier"}
        assert one["tokens_per_round"] == pytest.approx(one["tokens"] / one["rounds"])
        assert 1 <= len(one["acceptance"]) <= len(one["acceptance_unconditional"]) == 3
        assert all(0 <= share <= 1 for share in one["acceptance"])
    assert "| yours |" in (tmp_path / "drafter.md").read_text()


def test_evals_tokens_per_round_are_the_engines(target: Path, trained: Path, prompts: Path) -> None:
    """The same replies decoded here, and counted by the requests themselves."""
    options = ["--target", target, "--drafter", trained / "drafter", "--prompts", prompts, *QUICK]
    options += ["--max-tokens", "16", "--temperatures", "0", "--json"]
    done = CliRunner().invoke(cli.app, ["eval", *map(str, options)], catch_exceptions=False)
    told = json.loads(done.stdout)["sources"]["mine"]
    model = Model.load(str(target), device="cpu", compiled=False, drafter=str(trained / "drafter"))
    ids = model.encode_chat([{"role": "user", "content": "Why?"}])
    params = SamplingParams(temperature=0.0, max_tokens=16)
    request = model.complete(ids, params, model.engine("chain", width=4))
    assert told["rounds"] == 2 * request.speculation.rounds  # both held-out lines ask the same
    assert told["tokens"] == 2 * len(request.output)


def test_eval_without_a_drafter_or_prompts_is_one_sentence(target, prompts, tmp_path, capsys, monkeypatch) -> None:
    basics = ["eval", "--target", target, *QUICK]
    said = stopped(capsys, monkeypatch, *basics, "--prompts", prompts, "--drafter", "ngram")
    assert "no drafter to evaluate" in said
    (tmp_path / "one.jsonl").write_text('{"id": 1, "source": "one", "turns": ["Why?"]}\n')
    assert "no held-out prompts" in stopped(capsys, monkeypatch, *basics, "--prompts", tmp_path)


def test_arms_of_bench_decode(target: Path, trained: Path, prompts: Path) -> None:
    model = Model.load(str(target), device="cpu", compiled=False, drafter=str(trained / "drafter"), store=False)
    arms = parse_arms(model, "off, chain:3,auto@ngram", None)
    assert [(arm.policy, arm.width, arm.engine.drafter.name) for arm in arms] == [
        ("off", None, "ngram"),
        ("chain", 3, "dspark"),
        ("auto", None, "ngram"),
    ]
    run(model, arms, held_out(prompts, 2), SamplingParams(temperature=0.0, max_tokens=8))
    result = summary(model, arms, {})
    assert [(row["policy"], row["drafter"]) for row in result["arms"]] == [
        ("off", "ngram"),
        ("chain", "dspark"),
        ("auto", "ngram"),
    ]


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ("off,chian:3", "did you mean 'chain'"),
        ("off,chain:x", "'chain:x'"),
        ("off,chain:0", "0"),
        ("off,auto@ngrams", "did you mean 'ngram'"),
        ("off,,auto", "''"),
    ],
)
def test_a_bad_arm_is_named(target: Path, policies: str, said: str) -> None:
    model = Model.load(str(target), device="cpu", compiled=False)
    with pytest.raises(FiresteelError, match=said):
        parse_arms(model, policies, None)
