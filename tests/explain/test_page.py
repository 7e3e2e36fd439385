"""The page says what the trace says: its numbers are computed here a second time, from the lines themselves."""

from __future__ import annotations

import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from firesteel.explain.page import page, to_html, to_markdown
from firesteel.explain.svg import Plot, Series, svg, ticks
from firesteel.explain.trace import read
from firesteel.policy import make
from tests.explain.samples import rounds_of, saved, traced

Rounds = list[dict[str, Any]]
Tables = dict[str, list[list[str]]]
TITLES = [
    "Figure 3: ", "Figure 4: ", "Figure 8: ", "Figure 9: ", "Figure 10: ", "Table 1: ", "Table 2: ", "Table 7: ",
]  # fmt: skip


def explained(folder: Path, text: str) -> tuple[str, str]:
    made = page(read(saved(folder, text)))
    return to_markdown(made), to_html(made)


def tables_of(markdown: str) -> Tables:
    """The rows of every section's table, without its head, by the section's first two words."""
    tables = {}
    for section in markdown.split("\n## ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("|")]
        tables[section.split(":")[0].splitlines()[0]] = [line.strip("| ").split(" | ") for line in lines[2:]]
    return tables


@pytest.fixture(scope="module")
def text() -> str:
    return traced(make("adaspark"))


@pytest.fixture(scope="module")
def rounds(text: str) -> Rounds:
    return rounds_of(text)


@pytest.fixture(scope="module")
def markdown(text: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return explained(tmp_path_factory.mktemp("page"), text)[0]


@pytest.fixture(scope="module")
def tables(markdown: str) -> Tables:
    return tables_of(markdown)


def ms_of(one: dict[str, Any]) -> float:
    return one["draft_ms"] + one["verify_ms"] + one["other_ms"]


def tokens_of(one: dict[str, Any]) -> int:
    return sum(request["accepted"] + 1 for request in one["requests"])


def context_of(one: dict[str, Any]) -> float:
    return sum(request["context"] * request["width"] for request in one["requests"]) / one["rows"]


def band_of(one: dict[str, Any]) -> str:
    bits = int(context_of(one)).bit_length()
    return f"{2 ** (bits - 1)}-{2**bits - 1}"


def test_summary(rounds: Rounds, markdown: str, tables: Tables) -> None:
    timed = [one for one in rounds if not one["first"]]
    total = sum(map(ms_of, timed))
    for (_, ms, share), name in zip(tables["Summary"], ("draft_ms", "verify_ms", "other_ms"), strict=False):
        assert ms == f"{sum(one[name] for one in timed) / len(timed):.2f}"
        assert share == f"{sum(one[name] for one in timed) / total:.1%}"
    tokens = sum(map(tokens_of, rounds))
    assert f"{len(rounds)} rounds, {tokens:,} tokens: {tokens / len(rounds):.2f} tokens per round" in markdown
    plain = [ms_of(one) for one in timed if one["rows"] == 1 and one["facts"]["drafted"] == 0]
    ratio = sum(map(tokens_of, timed)) * median(plain) / total
    assert ratio > 1.1
    assert f"Speculation paid: these tokens would have taken {ratio:.2f} times as long plainly" in markdown
    assert f"{len(plain)} plain rounds ({median(plain):.2f} ms per token)" in markdown


def test_figure_8(rounds: Rounds, tables: Tables) -> None:
    chosen = [one for one in rounds if one["facts"]["reason"] != "measured"]
    assert 0 < len(chosen) < len(rounds)
    for width, count, share, tokens, ms in tables["Figure 8"]:
        mine = [one for one in chosen if one["rows"] == int(width)]
        assert (int(count), share) == (len(mine), f"{len(mine) / len(chosen):.1%}")
        assert tokens == f"{np.mean([tokens_of(one) for one in mine]):.2f}"
        assert ms == f"{np.mean([ms_of(one) for one in mine if not one['first']]):.2f}"
    assert len(tables["Figure 8"]) == len({one["rows"] for one in chosen})


def test_figure_3(rounds: Rounds, tables: Tables) -> None:
    cells = defaultdict(list)
    for one in rounds:
        if not one["first"]:
            cells[one["rows"], band_of(one)].append(one["verify_ms"])
    for width, band, count, middle, low, _ in tables["Figure 3"]:
        ms = cells.pop((int(width), band))
        assert (int(count), middle, low) == (len(ms), f"{median(ms):.2f}", f"{np.quantile(ms, 0.15):.2f}")
    assert not cells


def test_table_1(rounds: Rounds, tables: Tables) -> None:
    for row in tables["Table 1"]:
        bands = defaultdict(list)
        for one in rounds:
            if not one["first"] and one["rows"] == int(row[0]):
                bands[band_of(one)].append((context_of(one), one["verify_ms"]))
        groups = [np.array(some) for some in bands.values() if len(some) >= 3]
        if len(groups) < 2:
            assert row[-3:] == ["-", "-", "-"]
            continue
        contexts, ms = np.array([(some[:, 0].mean(), median(some[:, 1])) for some in groups]).T
        (alpha, beta), *_ = np.linalg.lstsq(np.stack([np.ones_like(contexts), contexts], 1), ms, rcond=None)
        residual = np.abs(alpha + beta * contexts - ms) / ms
        assert [float(cell) for cell in row[-3:-1]] == pytest.approx([alpha, 1000 * beta], abs=0.011)
        assert float(row[-1].rstrip("%")) == pytest.approx(100 * residual.max(), abs=0.11)
    assert sum(row[-1] != "-" for row in tables["Table 1"]) >= 2


def test_figure_9(rounds: Rounds, tables: Tables) -> None:
    timed = [one for one in rounds if not one["first"]]
    measured = [one for one in timed if one["facts"]["reason"] == "measured"]
    half = [one for one in timed[len(timed) // 2 :] if one not in measured and one["facts"]["price_ms"] is not None]
    error = median(abs(one["facts"]["price_ms"] / one["verify_ms"] - 1.0) for one in half)
    assert [value for _, value in tables["Figure 9"]] == [
        str(len(timed)),
        str(len(measured)),
        f"{sum(map(ms_of, measured)) / sum(map(ms_of, timed)):.1%}",
        tables["Figure 9"][3][1],
        f"{error:.1%}",
    ]


def test_figure_10(rounds: Rounds, markdown: str, tables: Tables) -> None:
    points = sorted(
        (request["expected"], request["accepted"])
        for one in rounds
        for request in one["requests"]
        if one["facts"]["reason"] == "chosen" and one["facts"]["guard"]["trusts_fit"] and request["width"] > 1
    )
    bins = [row for row in tables["Figure 10"] if row[0] == "fitted model"]
    assert sum(int(size) for _, _, size, _, _ in bins) == len(points)
    start = 0
    for _, _, size, expected, accepted in bins:
        mine = points[start : start + int(size)]
        assert (expected, accepted) == tuple(f"{mean:.2f}" for mean in np.mean(mine, axis=0))
        start += int(size)
    expected, accepted = np.sum(points, axis=0)
    assert f"fitted model: {accepted / expected:.3f} ({len(points)} trees)" in markdown


def test_table_2_and_figure_4(rounds: Rounds, tables: Tables) -> None:
    sums: defaultdict[str, Any] = defaultdict(lambda: np.zeros(3))
    for one in rounds:
        for request, said in zip(one["requests"], one["facts"]["requests"], strict=True):
            sums[request["id"]] += said["loss"]
    assert [row[0] for row in tables["Figure 4"]] == list(sums)
    for (_, *cells), (nodes, fitted, head) in zip(tables["Figure 4"], sums.values(), strict=True):
        assert cells == [f"{nodes:.0f}", f"{head / nodes:.4f}", f"{fitted / nodes:.4f}", f"{fitted / head - 1:+.1%}"]
    after = list(sums.values())[1:]
    nodes, fitted, head = np.sum(after, axis=0)
    won = sum(fit < by_head for _, fit, by_head in after)
    row = next(row for row in tables["Table 2"] if row[0] == "after the first")
    numbers = [f"{nodes:.0f}", f"{head / nodes:.4f}", f"{fitted / nodes:.4f}", f"{fitted / head - 1:+.1%}"]
    assert row[1:7] == [str(len(after)), *numbers, f"{won}/{len(after)}"]


def test_table_7(rounds: Rounds, markdown: str, tables: Tables) -> None:
    requests = [request for one in rounds for request in one["requests"]]
    text, pick, sibling = (
        np.sum([r["sources"][name] for r in requests], axis=0) for name in ("ngram", "pick", "sibling")
    )
    agreed = np.sum([said["agreed"] for one in rounds for said in one["facts"]["requests"]], axis=0)
    alone, everything = pick + sibling - agreed, pick + sibling + text
    assert min(*text, *agreed, *alone) > 0
    named = {row[0]: row[1:] for row in tables["Table 7"]}
    for name, (verified, kept) in (("drafter only", alone), ("both agreed", agreed), ("text only", text)):
        shares = [f"{verified / everything[0]:.1%}", f"{kept / everything[1]:.1%}", f"{kept / verified:.1%}"]
        assert named[name] == [str(verified), shares[0], str(kept), shares[1], shares[2]]
    asked = [
        one["facts"]["widened"]
        for one in rounds
        if one["facts"]["reason"] == "chosen" and one["facts"]["widened"] is not None
    ]
    assert f"{len(asked)} rounds had candidates of the text alone and a choice of width; in {sum(asked)}" in markdown


class Checker(HTMLParser):
    """Balanced tags, and what a browser would fetch."""

    void = ("meta", "circle", "path", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.count: defaultdict[str, int] = defaultdict(int)
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "xlink:href", "data")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.mark.parametrize("name", ["adaspark", "tree", "off"])
@pytest.mark.parametrize("batch", [False, True])
def test_html_is_one_file_with_every_part(tmp_path: Path, name: str, batch: bool) -> None:
    markdown, html = explained(tmp_path, traced(make(name), batch=batch))
    assert "http" not in html and "url(" not in html and "@import" not in html and "nan" not in html.lower().split()
    checker = Checker()
    checker.feed(html)
    assert checker.open == [] and checker.fetched == []
    assert not checker.count["script"] and not checker.count["link"]
    for title in TITLES:
        assert any(heading.startswith(title) for heading in checker.headings)
        assert f"\n## {title}" in markdown
    needs = [
        section.split(":")[0]
        for section in markdown.split("\n## ")
        if "eed a trace of" in section or "eeds a" in section
    ]
    wanted = [] if name == "adaspark" else ["One decision", "Figure 3", "Figure 9", "Table 2", "Figure 4", "Table 7"]
    assert needs == wanted
    assert checker.count["svg"] == {"adaspark": 5, "tree": 4, "off": 3}[name]


def test_a_name_is_no_markup(tmp_path: Path) -> None:
    text = traced(make("adaspark"), 3).replace("request-1", "<script>|")
    markdown, html = explained(tmp_path, text)
    assert "<script>" not in html + markdown
    assert "\\|" in markdown


def test_a_batch_counts_rounds_of_a_request(tmp_path: Path) -> None:
    text = traced(make("tree"), 3, batch=True)
    rounds = rounds_of(text)
    shares, tokens = sum(len(one["requests"]) for one in rounds), sum(map(tokens_of, rounds))
    markdown, _ = explained(tmp_path, text)
    assert f"{tokens / shares:.2f} tokens per round and request" in markdown
    assert "requests on average" in markdown


def test_one_request_is_shown_by_spans_of_rounds(tmp_path: Path) -> None:
    markdown, _ = explained(tmp_path, traced(make("adaspark"), 1))
    assert "a bar is a span of rounds" in markdown
    assert all(re.fullmatch(r"\d+-\d+", row[0]) for row in tables_of(markdown)["Figure 4"])


@pytest.mark.parametrize("lines", [1, 2, 5])
def test_short_traces_have_a_page(tmp_path: Path, text: str, lines: int) -> None:
    """Pins: medians, bins and axes of nothing."""
    markdown, html = explained(tmp_path, "".join(text.splitlines(keepends=True)[:lines]))
    Checker().feed(html)
    assert "## Table 7" in markdown


def test_an_unfinished_line_is_said(tmp_path: Path, text: str) -> None:
    markdown, _ = explained(tmp_path, text[:-5])
    assert "was left out" in markdown


def test_ticks_are_round_and_within() -> None:
    assert ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert ticks(-0.3, 0.31, 4) == pytest.approx([-0.2, 0.0, 0.2])
    assert 2 <= len(ticks(3.0, 3.001)) <= 8


def test_a_plot_of_one_point_or_none_has_axes() -> None:
    for x in ([], [0.0], [5.0]):
        drawn = svg(
            Plot("a plot", "x", "y", [Series("dots", x, x, "some"), Series("line", x, x), Series("bars", x, x)])
        )
        assert drawn.count("<circle") == len(x) + 1  # one in the legend
        assert "nan" not in drawn
