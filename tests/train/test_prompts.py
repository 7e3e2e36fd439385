"""User turns from files, and never an evaluation prompt among them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from firesteel.bench.prompts import held_out
from firesteel.errors import InvalidParameter
from firesteel.train.data_commands import OPENINGS
from firesteel.train.overlap import Overlap
from firesteel.train.prompts import read_openings, read_prompts

FOX = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def test_thirteen_words_in_a_row_are_an_overlap_and_twelve_are_not() -> None:
    overlap = Overlap([FOX])
    words = FOX.split()
    assert overlap.find("Well: " + " \n".join(words[1:]).upper() + " then") == " ".join(words[1:])
    assert overlap.find(" ".join(words[:12]) + " and " + " ".join(words[12:])) is None


def test_a_short_prompt_is_found_whole() -> None:
    overlap = Overlap(["Prove  it now."])
    assert overlap.find("please PROVE it\nnow. thanks") == "prove it now."
    assert overlap.find("prove it") is None
    assert overlap.find("") is None


def test_every_evaluation_prompt_is_refused_and_no_opening_is() -> None:
    overlap = Overlap()
    for conversation in held_out():
        for turn in conversation.turns:
            assert overlap.find(turn)
            assert overlap.find(f"Hello! {turn} Thank you.")
    assert not any(overlap.find(opening) for opening in read_openings(OPENINGS))


def lines(folder: Path, *records: object) -> Path:
    file = folder / "mine.jsonl"
    file.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in records))
    return file


def test_the_three_shapes_of_a_line(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    file = lines(
        tmp_path,
        {"prompt": "First?"},
        "",
        {"messages": [system, {"role": "user", "content": "A?"}, {"role": "assistant", "content": "a"},
                      {"role": "user", "content": "B?"}]},
        {"conversations": [{"from": "human", "value": "Ünï?"}, {"from": "gpt", "value": "c"}]},
    )  # fmt: skip
    assert read_prompts(file, Overlap([])) == {1: ("First?",), 3: ("A?", "B?"), 4: ("Ünï?",)}


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[1]",
        "3",
        "{}",
        '{"prompt": ""}',
        '{"prompt": 3}',
        '{"messages": []}',
        '{"messages": [{"role": "assistant", "content": "a"}]}',
        '{"messages": ["hello"]}',
        '{"messages": [{"role": "user"}]}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str) -> None:
    with pytest.raises(InvalidParameter, match=r"mine\.jsonl, line 2 is not a conversation"):
        read_prompts(lines(tmp_path, {"prompt": "fine"}, bad), Overlap([]))


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = lines(tmp_path)
    file.write_bytes(b'{"prompt": "fine"}\n{"prompt": "\xff"}\n')
    with pytest.raises(InvalidParameter, match="line 2"):
        read_prompts(file, Overlap([]))
    with pytest.raises(InvalidParameter, match="No such file"):
        read_prompts(tmp_path / "nowhere.jsonl", Overlap([]))


def test_an_evaluation_prompt_is_an_error_or_left_out_and_counted(tmp_path: Path) -> None:
    poisoned = held_out()[0].turns[0]
    file = lines(tmp_path, {"prompt": "fine"}, {"messages": [{"role": "user", "content": poisoned}]}, {"prompt": "too"})
    with pytest.raises(InvalidParameter, match=r"mine\.jsonl, line 2 holds an evaluation prompt"):
        read_prompts(file, Overlap())
    dropped: Counter[str] = Counter()
    assert list(read_prompts(file, Overlap(), dropped)) == [1, 3]
    assert dropped.total() == 1


def test_openings_are_the_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "openings.txt"
    file.write_text("How do\n\n  Why is \n")
    assert read_openings(file) == ("How do", "Why is")
    file.write_text("\n")
    with pytest.raises(InvalidParameter, match="no openings"):
        read_openings(file)
    with pytest.raises(InvalidParameter, match="nowhere"):
        read_openings(tmp_path / "nowhere")
