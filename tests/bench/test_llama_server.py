"""The child process ends however the block does, and replies are read as llama-server streams them."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from firesteel.bench import llama_server
from firesteel.bench.contenders import LlamaContender
from firesteel.bench.llama_server import LlamaServer, served
from firesteel.errors import PeerError

# Says its process id, then answers /health; with "--deaf" it does not end when it is asked to.
PROGRAM = """
import os, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
if "--broken" in sys.argv:
    sys.exit("cannot read the model")
if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
print("pid", os.getpid(), flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_text(f"#!{sys.executable}\n{PROGRAM}")
    path.chmod(0o755)
    return path


def pid_of(server: LlamaServer) -> int:
    found = re.search(r"pid (\d+)", server.log.read_text())
    assert found is not None
    return int(found[1])


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("ends_by", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_the_server_ends_with_the_block(program: Path, ends_by: type[BaseException] | None) -> None:
    pid = 0
    try:
        with served(program=program) as server:
            pid = pid_of(server)
            assert not is_gone(pid)
            if ends_by is not None:
                raise ends_by
    except (ValueError, KeyboardInterrupt, SystemExit):
        assert ends_by is not None
    assert is_gone(pid)


def test_a_termination_ends_the_server_too(program: Path) -> None:
    pids, before = [], signal.getsignal(signal.SIGTERM)

    def terminated() -> None:
        with served(program=program) as server:
            pids.append(pid_of(server))
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        terminated()
    assert ended.value.code == 128 + signal.SIGTERM
    assert is_gone(pids[0])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_server_that_does_not_listen_is_killed(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "END_S", 0.1)
    with served("--deaf", program=program) as server:
        pid = pid_of(server)
    assert is_gone(pid)


def test_a_server_that_does_not_start_says_why(program: Path) -> None:
    with pytest.raises(PeerError, match="did not start: cannot read the model"), served("--broken", program=program):
        pass


def test_a_server_that_is_interrupted_while_it_starts_ends(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C may come before the server is ready, and then nobody has it yet."""
    seen: list[int] = []

    def interrupted(server: LlamaServer, process: Any) -> None:
        seen.append(process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(llama_server, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt), served(program=program):
        pass
    assert is_gone(seen[0])


CHUNKS = [
    {"content": "a", "tokens": [5], "stop": False, "tokens_predicted": 1},
    {"content": "b", "tokens": [6], "stop": False, "tokens_predicted": 2},
    {"content": "", "tokens": [], "stop": False, "tokens_predicted": 3},
    {
        "content": "", "tokens": [], "stop": True, "tokens_predicted": 4,
        "timings": {"predicted_n": 4, "predicted_ms": 30.0, "draft_n": 6, "draft_n_accepted": 1},
    },
]  # fmt: skip

STATISTICS = "statistics draft-dspark: #calls(b,g,a) = 1 2 2, #gen drafts = 2, dur(b,g,a) = 0.001, {}, 0.002 ms\n"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[tuple[LlamaServer, dict[str, Any]]]:
    """A thread that answers as llama-server does, and what it is to answer and was asked."""
    script: dict[str, Any] = {"chunks": CHUNKS, "status": 200, "asked": []}
    log = tmp_path / "log"
    log.write_text(STATISTICS.format("10.000"))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            script["asked"].append(body)
            self.send_response(script["status"])
            self.end_headers()
            if not body.get("stream"):
                self.wfile.write(json.dumps({"tokens": [5, 6]}).encode())
                return
            for chunk in script["chunks"]:
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            with log.open("a") as said:
                said.write("noise\n" + STATISTICS.format("14.500"))

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield LlamaServer(http.server_address[1], log), script
        http.shutdown()
        thread.join()


def test_a_streamed_reply_is_counted_from_what_came_first(fake: tuple[LlamaServer, dict[str, Any]]) -> None:
    """Four tokens, the first from the prompt; one of the other three was a draft, so that they took two rounds."""
    server, script = fake
    reply = LlamaContender("llama-dspark", server).reply([1, 2, 3], 16)
    assert (reply.text, reply.tokens, reply.count, reply.first, reply.timed) == ("ab", [5, 6], 4, 1, 3)
    assert reply.rounds == 2
    assert reply.parts == {"draft": 4.5}
    assert reply.own_seconds == 0.03
    assert reply.seconds >= 0
    [asked] = script["asked"]
    assert asked["prompt"] == [1, 2, 3]
    assert (asked["n_predict"], asked["temperature"], asked["cache_prompt"]) == (16, 0, False)


def test_a_plain_server_names_no_drafts(fake: tuple[LlamaServer, dict[str, Any]]) -> None:
    server, script = fake
    script["chunks"] = [*CHUNKS[:3], {**CHUNKS[3], "timings": {"predicted_n": 4, "predicted_ms": 30.0}}]
    reply = LlamaContender("llama", server).reply([1], 16)
    assert (reply.rounds, reply.parts) == (3, {})


def test_a_reply_at_once(fake: tuple[LlamaServer, dict[str, Any]]) -> None:
    server, _ = fake
    assert server.complete([1], 2) == {"tokens": [5, 6]}


def test_a_broken_reply_is_an_error(fake: tuple[LlamaServer, dict[str, Any]]) -> None:
    server, script = fake
    script["chunks"] = CHUNKS[:2]
    with pytest.raises(PeerError, match="broke off"):
        list(server.stream([1], 2))
    script["status"] = 400
    with pytest.raises(PeerError, match="refused: 400"):
        list(server.stream([1], 2))
    gone = LlamaServer(1, server.log)
    with pytest.raises(PeerError, match="gave no reply"):
        list(gone.stream([1], 2))


def test_a_log_without_statistics_is_no_time(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("main: server is listening\n")
    assert LlamaServer(1, tmp_path / "log").drafted_ms() == 0.0
