"""Replies from a server: a small one that speaks the protocol, or fails to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from firesteel.errors import ServerError
from firesteel.train.chat import Chat
from firesteel.train.overlap import Overlap
from firesteel.train.selfplay import SelfPlay
from firesteel.train.server import PAUSE_S, ServerDecoder
from firesteel.train.stream import together

Reply = Callable[[dict[str, Any]], tuple[int, Any]]


def completion(body: dict[str, Any]) -> tuple[int, Any]:
    """Repeats the last message; one that asks for more is cut by the limit."""
    text = body["messages"][-1]["content"] + " is the question."
    reason = "length" if "more" in text else "stop"
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}]}


class FakeServer(ThreadingHTTPServer):
    """Answers with `reply`; keeps what it was asked."""

    def __init__(self) -> None:
        self.reply: Reply = completion
        self.asked: list[tuple[str, dict[str, Any]]] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        status, answer = self.server.reply(body)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("no_proxy", "*")
    with FakeServer() as fake:
        Thread(target=fake.serve_forever, daemon=True).start()
        yield fake
        fake.shutdown()


def run(url: str, chat: Chat, turns: dict[int, tuple[str, ...]], pauses: list[float] | None = None) -> dict[int, str]:
    """Text of the replies by line."""
    play = SelfPlay(chat=chat, overlap=Overlap(), temperatures=(0.6,), reply_len=40, seed=5)
    waited = [] if pauses is None else pauses
    with ServerDecoder(url, "toy", chat, 2, pause=waited.append) as decoder:
        made = [one for new in together(play.talks(turns, turns), decoder, 2) for one in new]
    assert decoder.decoded == sum(len(one.reply) for one in made)
    return {
        one.index: chat.text(one.reply) + ("" if one.ids[-1] == chat.reply("", ended=True)[0] else "...")
        for one in made
    }


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_replies_come_from_the_server_as_tokens(server: FakeServer, chat: Chat, end: str) -> None:
    turns = {1: ("Why?",), 2: ("And more?",), 5: ("How?",)}
    assert run(server.url + end, chat, turns) == {
        1: "Why? is the question.",
        2: "And more? is the question....",
        5: "How? is the question.",
    }
    assert {path for path, _ in server.asked} == {"/v1/chat/completions"}
    bodies = {body["messages"][0]["content"]: body for _, body in server.asked}
    assert len({body.pop("seed") for body in bodies.values()}) == 3
    assert bodies["Why?"] == {
        "model": "toy",
        "messages": [{"role": "user", "content": "Why?"}],
        "temperature": 0.6,
        "top_p": 1.0,
        "max_tokens": 40,
    }


def test_a_busy_server_is_asked_again(server: FakeServer, chat: Chat) -> None:
    server.reply = lambda body: completion(body) if len(server.asked) > 2 else (503, "busy")
    pauses: list[float] = []
    assert run(server.url, chat, {1: ("Why?",)}, pauses) == {1: "Why? is the question."}
    assert pauses == [PAUSE_S, 2 * PAUSE_S]


@pytest.mark.parametrize(
    ("reply", "said", "tries"),
    [
        ((400, {"error": "no such model"}), "400 .*no such model", 1),
        ((500, "out of memory"), "500 .*out of memory", 3),
        ((200, b"<html>"), "not JSON", 1),
        ((200, {"choices": []}), "something else than a completion", 1),
    ],
)
def test_a_failing_server_is_an_error_with_its_words(
    server: FakeServer, chat: Chat, reply: tuple[int, Any], said: str, tries: int
) -> None:
    server.reply = lambda body: reply
    with pytest.raises(ServerError, match=said):
        run(server.url, chat, {1: ("Why?",)})
    assert len(server.asked) == tries


def test_no_server_is_an_error_with_its_address(server: FakeServer, chat: Chat) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(ServerError, match=server.url):
        run(server.url, chat, {1: ("Why?",)})
