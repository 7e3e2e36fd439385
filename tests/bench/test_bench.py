"""What the benchmarks rest on: fair prompts, honest ratios, loops found, first differences found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firesteel.bench.decode import Arm, summary
from firesteel.bench.prompts import held_out
from firesteel.bench.report import decode_tables, width_tables, write_width
from firesteel.bench.specdiff import first_difference, top_two_gap
from firesteel.bench.statistics import geometric_mean_interval, is_looped
from firesteel.bench.width import WidthBench, tree_of
from firesteel.errors import InvalidParameter, TargetNotFound
from tests import toys


def test_the_shipped_prompts_are_the_held_out_lines_in_turn() -> None:
    everything = held_out()
    assert len(everything) == 120
    assert {one.source for one in everything[:5]} == {"gsm8k", "humaneval", "math500", "mbpp", "mt-bench"}
    assert held_out(limit=7) == everything[:7]
    assert len({one.id for one in everything}) == 120


def test_a_bad_prompt_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"id": 1, "source": "s", "turns": ["x"]}\n{"id": 2}\n')
    with pytest.raises(InvalidParameter, match=r"mine.jsonl, line 2"):
        held_out(tmp_path)
    with pytest.raises(TargetNotFound):
        held_out(tmp_path / "nowhere")


def test_ratios_are_geometric_and_their_interval_is_over_conversations() -> None:
    mean, low, high = geometric_mean_interval([2.0, 0.5], ["a", "b"])
    assert mean == pytest.approx(1.0)
    assert low == pytest.approx(0.5)
    assert high == pytest.approx(2.0)
    # Two replies of one conversation move together, so they say nothing of its spread.
    _, low, high = geometric_mean_interval([2.0, 0.5], ["a", "a"])
    assert low == pytest.approx(high) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("tokens", "looped"),
    [
        (list(range(60)), False),
        ([7] * 48, True),
        ([7] * 47, False),
        ([*range(40), *([1, 2, 3] * 20)], True),
        ([*([1, 2, 3] * 20), 9], False),
        (list(range(64)) * 3, True),
        (list(range(64)) * 2, False),
    ],
)
def test_a_loop_is_three_copies_and_48_tokens_at_the_end(tokens: list[int], looped: bool) -> None:
    assert is_looped(tokens) is looped


def test_looped_replies_are_left_out_of_ratios_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stub:
        class loaded:  # noqa: N801
            name = "toy"

        class modes:  # noqa: N801
            name = "eager"

        dtype = "fp32"

    engine = toys.engine(toys.target())
    base, other = (
        Arm(name, 8, engine, [(0.1, 5.0, 0.2), (0.3, 7.0, 0.4), (0.2, 6.0, 0.9)]) for name in ("off", "tree")
    )
    for arm, speeds in ((base, [10.0, 10.0, 10.0]), (other, [20.0, 5.0, 1000.0])):
        arm.speeds = {(str(i), 0): speed for i, speed in enumerate(speeds)}
        arm.tokens = arm.rounds = 1
        arm.decode_s = 1.0
    other.looped = {("2", 0)}
    result = summary(Stub, [base, other], {})  # type: ignore[arg-type]
    assert result["rounds"][0] == {
        "policy": "off", "width": 8, "rounds": 3, "draft_ms": 0.2, "verify_ms": 6.0, "host_ms": 0.4, "drafter": "ngram",
    }  # fmt: skip
    base.parts = []
    assert summary(Stub, [base], {})["rounds"][0]["draft_ms"] is None  # type: ignore[arg-type]
    assert "| off |" in decode_tables(summary(Stub, [base], {}))  # type: ignore[arg-type]
    arms = result["arms"]
    assert arms[1]["replies"] == 2
    assert arms[1]["looped"] == 1
    assert arms[1]["ratio"] == pytest.approx(1.0)
    assert set(arms[1]) == {
        "policy", "drafter", "width", "replies", "looped", "decode_tokens_per_s", "tokens_per_round", "ratio",
        "ratio_low", "ratio_high",
    }  # fmt: skip


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_the_gap_at_a_difference_is_that_of_the_two_best_logits() -> None:
    of = toys.target()
    text = [5, 17, 3]
    best = np.sort(toys.model()(torch.tensor([text])).logits[0, -1].detach().numpy())[-2:]
    assert top_two_gap(of, text) == pytest.approx(best[1] - best[0], abs=1e-4)


def test_width_bench_times_every_cell(tmp_path: Path) -> None:
    cells: list[int] = []
    bench = WidthBench(toys.target(), repeats=3)
    records: list[dict[str, Any]] = list(bench.run((1, 2, 8), (16, 40), lambda: cells.append(1)))
    assert [(r["context"], r["rows"]) for r in records] == [(16, 1), (16, 2), (16, 8), (40, 1), (40, 2), (40, 8)]
    assert all(math.isfinite(r["ms"]) and r["ms"] > 0 for r in records)
    assert len(cells) == 18
    named = [{"engine": "firesteel", "mode": "eager", "dtype": "fp32", **record} for record in records]
    machine = {"processor": "p", "cores": 2, "instruction_sets": ["avx2"], "torch": "t", "threads": 2}
    write_width({"machine": machine, "command": "firesteel bench width", "records": named}, tmp_path)
    assert json.loads((tmp_path / "width.json").read_text())["records"] == named
    assert width_tables(named) in (tmp_path / "width.md").read_text()
    assert "| firesteel | eager | fp32 |" in width_tables(named)


def test_trees_of_the_width_bench_have_their_width() -> None:
    assert [tree_of(width, 11).width for width in (1, 2, 64)] == [1, 2, 64]
