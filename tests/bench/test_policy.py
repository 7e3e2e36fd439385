"""`bench policy`: the rounds are what their names say, and the command says how long they took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firesteel.bench.commands import app
from firesteel.bench.policy import CASES, Rounds, measure
from firesteel.errors import InvalidParameter
from firesteel.policy.adaspark import AdaSpark

VERBS = ("plan_ms", "grow_ms", "learn_ms")


def test_every_case_is_what_its_name_says() -> None:
    nothing, chain, draft, batch, widths = measure("adaspark", 30, lambda: None)
    assert nothing["candidates"] == 0
    assert nothing["rows"] == 1
    assert 1 <= chain["candidates"] <= 33
    assert draft["candidates"] > 4 * 8
    assert batch["candidates"] > 8 * 4 * 8
    assert batch["rows"] >= 8
    assert widths["candidates"] == 120
    assert widths["widths"] == 24
    for one in (nothing, chain, draft, batch, widths):
        assert min(one[verb] for verb in VERBS) > 0.0
        assert one["total_ms"] >= max(one[verb] for verb in VERBS)


def test_all_24_widths_are_priced_before_a_round_is_timed() -> None:
    case = CASES[-1]
    policy = case.policy("adaspark")
    assert isinstance(policy, AdaSpark)
    rounds = Rounds(case, policy)
    for _ in range(200):
        rounds.run()
    assert len(policy.cost.offer(1, 121).widths) >= 20


@pytest.mark.parametrize("name", ["auto", "tree", "off"])
def test_every_policy_can_be_timed(name: str) -> None:
    assert len(measure(name, 2, lambda: None)) == len(CASES)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="0"):
        measure("adaspark", 0, lambda: None)
    with pytest.raises(InvalidParameter, match="adasprk"):
        measure("adasprk", 2, lambda: None)


def test_the_command_prints_a_table_and_writes_a_folder(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["policy", "--rounds", "2", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "policy.json").read_text())
    assert set(result) == {"machine", "command", "records"}
    text = (tmp_path / "policy.md").read_text()
    assert "Host time of deciding, adaspark" in text
    for one in result["records"]:
        assert f"| {one['case']} |" in text
        assert f"| {one['case']} |" in done.output
