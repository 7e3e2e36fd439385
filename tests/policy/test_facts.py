"""What AdaSpark says of a round is what decided it, and asking changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from firesteel.accept.config import AcceptanceConfig
from firesteel.policy import make
from firesteel.policy.adaspark import AdaSpark
from firesteel.policy.config import AdaSparkConfig
from tests.explain.samples import block, rounds_of, script, traced
from tests.policy.scripted import block_of_errors, decode


@pytest.fixture(scope="module")
def rounds() -> list[dict[str, Any]]:
    return rounds_of(traced(AdaSpark()))


def chosen(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in rounds if one["facts"]["reason"] == "chosen"]


def test_the_rule_over_the_facts_chooses_what_was_verified(rounds: list[dict[str, Any]]) -> None:
    """Pins: facts are computed after the choice, so anything that the choice changes would show here."""
    rule = AdaSpark().chooser.best
    assert len(chosen(rounds)) > 50
    for one in chosen(rounds):
        facts = one["facts"]
        rows, verify_ms, tokens = (np.array(facts["offered"][name]) for name in ("rows", "verify_ms", "tokens"))
        best = rule(rows, tokens, verify_ms + facts["fixed_ms"], facts["rate"], facts["held"])
        assert rows[best] == one["rows"]
        assert facts["price_ms"] == pytest.approx(verify_ms[best], abs=1e-3)


def test_values_follow_from_tokens_prices_and_rate(rounds: list[dict[str, Any]]) -> None:
    for one in chosen(rounds):
        facts, offered = one["facts"], one["facts"]["offered"]
        tokens, ms = np.array(offered["tokens"]), np.array(offered["verify_ms"]) + facts["fixed_ms"]
        value = tokens / ms if facts["rate"] is None else tokens - facts["rate"] * ms
        assert offered["V"] == pytest.approx(value, abs=1e-3)
    assert {one["facts"]["rate"] is None for one in chosen(rounds)} == {True, False}


def test_s_of_the_chosen_width_is_what_the_tree_expects(rounds: list[dict[str, Any]]) -> None:
    """But for exploration, which gives the tree's last row to another."""
    same = [
        one["facts"]["offered"]["S"][one["facts"]["offered"]["rows"].index(one["rows"])]
        == pytest.approx(sum(request["expected"] for request in one["requests"]), abs=1e-3)
        for one in chosen(rounds)
    ]
    assert sum(same) > 0.9 * len(same)


def test_losses_are_those_of_the_guard() -> None:
    policy = AdaSpark(
        AdaSparkConfig(acceptance=AcceptanceConfig(half_life=10**12), request_every=1)
    )  # forgets, skips nothing
    facts = [one["facts"] for one in rounds_of(traced(policy))]
    sums = np.sum([request["loss"] for one in facts for request in one["requests"]], axis=0)
    assert sums[1:] == pytest.approx([policy.acceptance.guard.fitted, policy.acceptance.guard.head], rel=1e-4)


def test_asking_changes_nothing() -> None:
    asked, silent = AdaSpark(), AdaSpark()
    widths = [
        decode(
            policy,
            [script("one", 3), script("two", 4)],
            lambda rows, _: 10.0 + rows,
            drafter=block,
            draft_ms=2.0,
            record=lambda report, policy=policy, asks=asks: policy.facts(report) if asks else None,
        ).widths
        for policy, asks in ((asked, True), (silent, False))
    ]
    assert widths[0] == widths[1]
    assert asked.state() == silent.state()


def test_without_a_drafter_every_wider_verify_is_the_texts() -> None:
    facts = [one["facts"] | {"rows": one["rows"]} for one in rounds_of(traced(AdaSpark(), drafts=False))]
    asked = [one for one in facts if one["widened"] is not None and one["reason"] == "chosen"]
    assert any(one["widened"] for one in asked)
    assert not any(one["widened"] for one in asked if one["rows"] == 1)
    assert all(one["drafted"] == 0 for one in facts)


def test_rests_are_told() -> None:
    said: list[dict[str, Any]] = []
    policy = AdaSpark()
    decode(
        policy,
        [script("one", 3)],
        lambda rows, _: 10.0 + rows,
        drafter=block_of_errors,
        draft_ms=5.0,
        record=lambda report: said.append(policy.facts(report)),
    )
    assert [one["rests"]["length"] for one in said[:4]] == [0, 0, 0, 0]
    assert all(one["rests"]["now"] for one in said[:4]), "a policy starts without, to have something to compare with"
    assert {one["rests"]["length"] for one in said if one["rests"]["now"]} >= {8, 16}
    assert all(one["drafted"] == 0 for one in said if one["rests"]["now"])


@pytest.mark.parametrize("name", ["off", "chain", "tree"])
def test_other_policies_have_none(name: str) -> None:
    assert all("facts" not in one for one in rounds_of(traced(make(name), 1)))
