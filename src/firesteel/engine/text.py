"""From tokens to text: characters split over tokens are held back, stop strings cut the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"


class TextStream:
    """The text of one reply as it grows; the concatenation of `delta()`s is `text`.

    Args:
        tokenizer: a transformers tokenizer.
        stop: strings that end the reply; the text ends before the first of them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        # The tokenizers library's own stream holds back incomplete UTF-8; slow tokenizers decode everything anew.
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._stream = DecodeStream(skip_special_tokens=True) if self._backend is not None else None
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._sent = 0
        self._done = False
        self.text = ""

    def push(self, token: int) -> bool:
        """Take one token; True when a stop string is complete, after which the text no longer grows."""
        if self._done:
            return True
        self._ids.append(token)
        self._grow(self._step(token))
        return self._done

    def close(self) -> None:
        """No more tokens come: bytes still held back are decoded as they are."""
        if self._done:
            return
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        if whole.startswith(self.text):
            self._grow(whole[len(self.text) :])
        self._done = True

    def delta(self) -> str:
        """Text that is new since the last call; what might be the start of a stop string waits."""
        end = len(self.text) if self._done else len(self.text) - self._held()
        new = self.text[self._sent : end]
        self._sent = max(self._sent, end)
        return new

    def _step(self, token: int) -> str:
        if self._stream is not None:
            return self._stream.step(self._backend, token) or ""
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        return "" if whole.endswith(REPLACEMENT) else whole[len(self.text) :]

    def _grow(self, new: str) -> None:
        if not new:
            return
        longest = max((len(stop) for stop in self._stop), default=0)
        start = max(0, len(self.text) - longest + 1)
        self.text += new
        found = [at for stop in self._stop if (at := self.text.find(stop, start)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self._done = True

    def _held(self) -> int:
        """Characters at the end that could begin a stop string."""
        for length in range(min(len(self.text), max((len(s) for s in self._stop), default=1) - 1), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self._stop):
                return length
        return 0
