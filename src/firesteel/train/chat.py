"""How a target is spoken to: from messages to token ids and back, through its own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.errors import InvalidParameter, UnsupportedModel
from firesteel.models.loading import LoadedTarget
from firesteel.models.target import TargetShape

Message = Mapping[str, str]  # role, content
_MARK = "the words of the user"


class Chat:
    """The chat template of a target; its weights are not needed.

    Fields:
        max_context: positions that a prompt and its reply may take together.

    Raises:
        InvalidParameter: the tokenizer has no chat template.
        UnsupportedModel: the template does not say where a user's words begin.
    """

    def __init__(self, loaded: LoadedTarget) -> None:
        self._tokenizer, self._stop_ids = loaded.tokenizer, loaded.stop_ids
        if not self._tokenizer.chat_template:
            raise InvalidParameter(f"{loaded.name} has no chat template, so it cannot hold conversations")
        self.max_context = TargetShape.of(loaded.config).max_context
        text = self._tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
        self._before_user, found, _ = text.partition(_MARK)
        if not found:
            raise UnsupportedModel(f"{loaded.name}: its chat template does not repeat a user's words")

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation up to where the reply begins."""
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return self._encode(text)

    def user_turn(self, opening: str = "") -> list[int]:
        """Token ids of the template up to a user's words, and of the first of these."""
        return self._encode(self._before_user + opening)

    def reply(self, text: str, *, ended: bool) -> list[int]:
        """Token ids of a reply that came as text; with the end-of-turn token where it ended by itself."""
        ids, eos = self._encode(text), self._tokenizer.eos_token_id
        if ended and self._stop_ids:
            ids.append(eos if eos in self._stop_ids else self._stop_ids[0])
        return ids

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids, without the template's own tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)
