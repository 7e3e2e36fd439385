"""The template, token by token: what is said is what a server or the target would say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firesteel.errors import InvalidParameter
from firesteel.model import Model
from firesteel.models.loading import load
from firesteel.train.chat import Chat

HELLO = [{"role": "user", "content": "Hello"}]


def test_a_prompt_is_the_models_own(model: Model, chat: Chat) -> None:
    assert chat.prompt(HELLO) == model.encode_chat(HELLO)
    assert chat.text(chat.prompt(HELLO)) == "user\nHello\nassistant\n"


def test_a_user_turn_begins_where_the_template_puts_it(chat: Chat) -> None:
    whole = chat.prompt(HELLO)
    for opening in ("", "Hel", "Hello"):
        opened = chat.user_turn(opening)
        assert opened == whole[: len(opened)]
        assert chat.text(opened) == "user\n" + opening


def test_a_reply_that_ended_has_the_end_of_turn(model: Model, chat: Chat) -> None:
    assert chat.reply("ab", ended=True) == [*chat.reply("ab", ended=False), model.loaded.tokenizer.eos_token_id]


def test_the_default_targets_template_is_understood() -> None:
    chat = Chat(load())
    opened = chat.user_turn("Why do")
    assert opened == chat.prompt([{"role": "user", "content": "Why do cats purr?"}])[: len(opened)]


def test_without_a_template_there_is_no_conversation(model: Model) -> None:
    tokenizer = type(model.loaded.tokenizer)(tokenizer_object=model.loaded.tokenizer.backend_tokenizer)
    with pytest.raises(InvalidParameter, match="no chat template"):
        Chat(replace(model.loaded, tokenizer=tokenizer))
