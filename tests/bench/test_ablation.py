"""`bench adaspark` on a toy: every arm runs, and the tables are the arms' own ratios."""

from __future__ import annotations

import math

import pytest

from firesteel.bench import ablation
from firesteel.bench.decode import Arm
from firesteel.bench.statistics import geometric_mean_interval


class _Speeds(Arm):
    """An arm that has run."""

    def __init__(self, speeds: dict[tuple[str, int], float], looped: set[tuple[str, int]] = frozenset()) -> None:  # type: ignore[assignment]
        super().__init__("p", None, None, [])  # type: ignore[arg-type]
        self.speeds, self.looped = speeds, set(looped)
        self.contexts = {key: 100 + 200 * key[1] for key in speeds}


def arms(fast: float) -> dict[str, Arm]:
    keys = [("a", 0), ("a", 1), ("b", 0)]
    named = {"off": 1.0, "three-token chain": 1.1, "fixed tree": 1.2, "adaspark": 1.5, "adaspark without text": 1.4}
    named |= {f"pinned at {width}": fast if width == 8 else 0.9 for width in ablation.PINNED}
    return {name: _Speeds(dict.fromkeys(keys, 10.0 * speed)) for name, speed in named.items()}


def test_the_best_pinned_width_is_named_and_compared() -> None:
    made = arms(fast=1.6)
    bands = ablation._bands(made["adaspark"])
    assert [name for name, _ in bands] == ["all", "64 to 127", "256 to 511"]
    row = ablation._pinned(made, bands[0])
    assert row["best"] == 8
    assert row["adaspark_over_best"]["ratio"] == pytest.approx(1.5 / 1.6)
    assert row["widths"][8]["ratio"] == pytest.approx(1.6 / 1.5)


def test_looped_replies_of_either_arm_are_left_out() -> None:
    one, base = _Speeds({("a", 0): 2.0, ("b", 0): 4.0}, {("b", 0)}), _Speeds({("a", 0): 1.0, ("b", 0): 1.0})
    assert ablation.compare(one, base, list(one.speeds)) == {"replies": 1, "ratio": 2.0, "low": 2.0, "high": 2.0}
    assert ablation.compare(base, one, [("b", 0)]) is None


def test_additions_are_over_plain_decoding_by_source_and_the_tables_say_so() -> None:
    made = arms(fast=0.8)
    rows = ablation._additions(made, {"a": "prose", "b": "code"})
    by_name = {row["arm"]: row for row in rows}
    assert by_name["adaspark"]["sources"]["code"]["ratio"] == pytest.approx(1.5)
    assert by_name["adaspark over three-token chain"]["all"]["ratio"] == pytest.approx(1.5 / 1.1)
    result = {"pinned": [ablation._pinned(made, band) for band in ablation._bands(made["adaspark"])], "additions": rows}
    text = ablation.tables(result)
    assert "| fixed tree | 1.200 [1.200, 1.200] | 1.200 | 1.200 |" in text
    assert "| adaspark over three-token chain | 1.364 [1.364, 1.364] |" in text


def test_the_interval_is_over_conversations() -> None:
    mean, low, high = geometric_mean_interval([2.0, 2.0, 8.0], ["a", "a", "b"])
    assert mean == pytest.approx(math.exp((2 * math.log(2) + math.log(8)) / 3))
    assert low < mean < high
