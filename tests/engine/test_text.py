"""Text from tokens, whatever the chunking: the stream's concatenation is the unstreamed text."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from firesteel.engine.text import TextStream


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of one byte a token: every character beyond ASCII is split over tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def stream(tokenizer: PreTrainedTokenizerFast, text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    sink, deltas = TextStream(tokenizer, stop), []
    for token in tokenizer(text).input_ids:
        done = sink.push(token)
        deltas.append(sink.delta())
        if done:
            break
    sink.close()
    deltas.append(sink.delta())
    return deltas, sink


@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語 text", "🙂🙃 emoji", "a\n\nb  c"])
def test_characters_split_over_tokens_are_held_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    deltas, sink = stream(tokenizer, text)
    assert "".join(deltas) == sink.text == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_bytes_that_never_become_a_character_come_out_at_the_end(tokenizer: PreTrainedTokenizerFast) -> None:
    sink = TextStream(tokenizer)
    ids = tokenizer("a🙂").input_ids
    for token in ids[:-1]:
        sink.push(token)
    assert sink.delta() == "a"
    sink.close()
    assert "a" + sink.delta() == sink.text == tokenizer.decode(ids[:-1])


def test_text_ends_before_the_stop_string_and_no_part_of_it_leaks(tokenizer: PreTrainedTokenizerFast) -> None:
    deltas, sink = stream(tokenizer, "one END two", ("END",))
    assert "".join(deltas) == sink.text == "one "


def test_what_only_looked_like_a_stop_string_is_delivered(tokenizer: PreTrainedTokenizerFast) -> None:
    deltas, sink = stream(tokenizer, "one ENOUGH EN", ("END",))
    assert "".join(deltas) == sink.text == "one ENOUGH EN"


def test_the_earliest_of_several_stops_counts(tokenizer: PreTrainedTokenizerFast) -> None:
    _, sink = stream(tokenizer, "abcdef", ("cd", "bc"))
    assert sink.text == "a"
