"""The fixed policies, and making a policy by name."""

from __future__ import annotations

import numpy as np
import pytest

from firesteel.errors import InvalidParameter
from firesteel.ngram import NgramIndex
from firesteel.policy import NAMES, make
from firesteel.policy.base import best_of_batch, within
from firesteel.policy.fixed import FixedChain, FixedConfig
from firesteel.rounds import Plan, RoundView
from firesteel.tree import Source, TokenTree
from tests.policy.scripted import Script, block_of_errors, block_of_script, decode

LINE = [10, 11, 12, 13, 14, 15, 16, 17]


def one_ms(rows: int, number: int) -> float:
    return 1.0


def repeating(name: str = "r") -> Script:
    return Script(name, LINE * 20, 3 * len(LINE))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("drafter", [None, block_of_script, block_of_errors])
def test_every_policy_decodes_every_script(name: str, drafter: object) -> None:
    """`decode` asserts depth and anchor of every tree; the script's end is a limit on length that no tree may pass."""
    scripts = [repeating("a"), Script("b", list(range(60)), 5), Script("c", [1], 1), repeating("d")]
    trace = decode(make(name), scripts, one_ms, drafter=drafter)  # type: ignore[arg-type]
    assert all(script.left == 0 for script in scripts)
    assert trace.widths


@pytest.mark.parametrize("name", ["chain", "tree"])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 16, 64])
def test_a_fixed_width_is_never_exceeded_and_is_reached_on_text_that_repeats(name: str, width: int) -> None:
    trace = decode(make(name, width=width), [repeating()], one_ms)
    assert max(trace.widths) == min(width, 33)
    assert trace.widths[0] == min(width, 33)


def test_off_and_a_width_of_one_draft_nothing() -> None:
    view = repeating().view()
    for policy in (make("off"), make("chain", width=1), make("tree", width=1)):
        plan = policy.plan([view])
        candidates, trees = policy.grow([view], plan, [None])
        assert plan.lengths.tolist() == [0]
        assert [tree.width for tree in (*candidates, *trees)] == [1, 1]


def test_the_chain_is_the_picks_and_then_the_text() -> None:
    script = repeating()
    view, draft = script.view(), block_of_script(script.text, script.at, 3)
    policy = make("chain", width=8)
    _, (tree,) = policy.grow([view], policy.plan([view]), [draft])
    assert tree.tokens.tolist() == script.text[script.at : script.at + 8]
    assert tree.parents.tolist() == list(range(-1, 7))
    assert tree.sources.tolist() == [Source.ANCHOR] + [Source.PICK] * 3 + [Source.NGRAM] * 4


def test_the_tree_is_the_best_first_prefix_of_the_candidates() -> None:
    script = repeating()
    view, draft = script.view(), block_of_errors(script.text, script.at, 7)
    policy = make("tree", width=12)
    (everything,), (tree,) = policy.grow([view], policy.plan([view]), [draft])
    assert tree.survival.tolist() == everything.prefix(12).survival.tolist()
    assert tree.width == 12


def test_where_nothing_is_proposed_the_tree_is_one_row() -> None:
    view = RoundView("r", 5, 3, 0.0, 100, NgramIndex([2, 3, 4, 5]))
    for name in NAMES:
        policy = make(name)
        _, (tree,) = policy.grow([view], policy.plan([view]), [None])
        assert tree.width == 1


@pytest.mark.parametrize("room", [-1, 0, 1, 4])
def test_room_bounds_plan_and_depth(room: int) -> None:
    view = RoundView("r", LINE[-1], 40, 0.0, room, NgramIndex(LINE * 6))
    for name in ("chain", "tree"):
        policy = make(name, width=16)
        plan = policy.plan([view])
        assert plan.lengths[0] == max(0, room)
        _, (tree,) = policy.grow([view], plan, [None])
        assert int(tree.depths.max()) == max(0, room)


@pytest.mark.parametrize("budget", [0, 2, 3, 7, 100])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_stays_within_its_budget_and_keeps_its_anchors(name: str, budget: int) -> None:
    views = [repeating("a").view(), repeating("b").view()]
    policy = make(name)
    plan = Plan(policy.plan(views).lengths, budget)
    _, trees = policy.grow(views, plan, [None, None])
    assert sum(tree.width for tree in trees) <= max(2, budget)


def test_a_short_budget_goes_to_the_likeliest_rows_of_the_batch() -> None:
    likely, unlikely = TokenTree.chain(1, [2, 3, 4], q=0.9), TokenTree.chain(1, [2, 3, 4], q=0.75)
    assert [tree.width for tree in within([unlikely, likely], 6)] == [2, 4]
    owners, rows, survival = best_of_batch([unlikely, likely])
    assert owners.tolist() == [1, 1, 0, 1, 0, 0]
    assert rows.tolist() == [1, 2, 1, 3, 2, 3]
    assert np.all(np.diff(survival) <= 0)


def test_names_and_widths_are_checked() -> None:
    assert [make(name).name for name in NAMES] == ["adaspark" if name == "auto" else name for name in NAMES]
    with pytest.raises(InvalidParameter, match=r"chian.*did you mean 'chain'"):
        make("chian")
    for width in (0, -3, 65):
        for name in NAMES:
            with pytest.raises(InvalidParameter, match=str(width)):
                make(name, width=width)
    with pytest.raises(InvalidParameter):
        FixedChain(FixedConfig(width=100))
