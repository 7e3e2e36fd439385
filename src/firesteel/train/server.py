"""Replies from a server that speaks OpenAI's protocol, such as vLLM or llama.cpp."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from firesteel.errors import ServerError
from firesteel.train.chat import Chat
from firesteel.train.stream import Answer, Ask

TRIES, PAUSE_S, TIMEOUT_S = 3, 2.0, 600.0


class ServerDecoder:
    """Answers by `POST /v1/chat/completions`; used in a `with`, which ends its threads.

    The server gives text, and its tokens are what the target's tokenizer makes of it: nearly always those that it
    generated.

    Args:
        url: of the server, with or without `/v1`.
        model: the name that the server knows the target by.
        chat: the target's template.
        workers: most requests at a time.
        pause: waits that many seconds before another try.
    """

    def __init__(
        self, url: str, model: str, chat: Chat, workers: int, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
        self._model, self._chat, self._pause = model, chat, pause
        self._pool = ThreadPoolExecutor(workers)
        self._pending: set[Future[tuple[str, bool]]] = set()
        self.decoded = 0

    def add(self, ask: Ask) -> Future[tuple[str, bool]]:
        """Send a request."""
        future = self._pool.submit(self._complete, ask)
        self._pending.add(future)
        return future

    def finished(self) -> list[tuple[Future[tuple[str, bool]], Answer]]:
        """Wait for at least one answer.

        Raises:
            ServerError: the server cannot be reached, refuses, or answers something else than a completion.
        """
        done, self._pending = wait(self._pending, return_when=FIRST_COMPLETED)
        answers = []
        for future in done:  # tokenized here and not in the threads: tokenizers are not made for several
            text, ended = future.result()
            ids = self._chat.reply(text, ended=ended)
            self.decoded += len(ids)
            answers.append((future, Answer(ids, ended)))
        return answers

    def __enter__(self) -> ServerDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _complete(self, ask: Ask) -> tuple[str, bool]:
        answer = self._post(
            {
                "model": self._model,
                "messages": list(ask.messages),
                "temperature": ask.params.temperature,
                "top_p": ask.params.top_p,
                "max_tokens": ask.params.max_tokens,
                "seed": ask.params.seed,
            }
        )
        try:
            choice = answer["choices"][0]
            return choice["message"]["content"] or "", choice["finish_reason"] == "stop"
        except (KeyError, IndexError, TypeError) as error:
            raise ServerError(f"{self._url} answered something else than a completion: {answer!r:.200}") from error

    def _post(self, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        for attempt in range(1, TRIES + 1):
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                said = error.read().decode(errors="replace")[:200]
                reason, passing = f"{error.code} {error.reason}: {said}", error.code == 429 or error.code >= 500
            except (OSError, http.client.HTTPException) as error:
                reason, passing = str(error), True
            except ValueError as error:
                reason, passing = f"not JSON: {error}", False
            if not passing or attempt == TRIES:
                break
            self._pause(PAUSE_S * attempt)
        raise ServerError(f"{self._url} gave no reply: {reason}")
