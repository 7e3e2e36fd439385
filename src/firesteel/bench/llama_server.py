"""llama.cpp's server: started on a free port of this machine, asked for replies, and always ended."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.bench import peers
from firesteel.errors import PeerError

START_S = 300.0  # a machine that is busy with something else reads weights slowly
END_S = 10.0
LOG_S = 1.0
# At --verbosity 4 the server says after every reply what it has drafted since its start, in milliseconds too.
TRACE = 4
_DRAFTED_MS = re.compile(r"statistics .*dur\(b,g,a\) = *[\d.]+, *([\d.]+), *[\d.]+ ms")


@dataclass(frozen=True)
class LlamaServer:
    """A running llama-server, or what speaks like one.

    Fields:
        port: on this machine.
        log: the file with all that it says.
    """

    port: int
    log: Path

    def complete(self, ids: Sequence[int], most: int) -> dict[str, Any]:
        """A greedy reply at once: its `tokens`, and its `timings` with the counts of drafts."""
        [answer] = self._ask({**_greedy(ids, most), "return_tokens": True})
        return answer

    def stream(self, ids: Sequence[int], most: int) -> Iterator[dict[str, Any]]:
        """A greedy reply as it comes: one object per token, and a last one with `stop` set and `timings`."""
        last: dict[str, Any] = {}
        for last in self._ask({**_greedy(ids, most), "stream": True}):
            yield last
        if not last.get("stop"):
            raise PeerError(f"llama-server broke off a reply: {self.said()}")

    def drafted_ms(self, after: float | None = None) -> float:
        """Milliseconds it has drafted since its start, as its log says: 0 where it does not.

        Args:
            after: what it said before; its log comes from a thread of its own and is waited for a moment.
        """
        begun = time.monotonic()
        while True:
            found = _DRAFTED_MS.findall(self.log.read_text(errors="replace"))
            drafted = float(found[-1]) if found else 0.0
            if after is None or drafted > after or time.monotonic() - begun > LOG_S:
                return drafted
            time.sleep(0.01)

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-800:].strip()

    def _ask(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Raises PeerError: it cannot be reached, refuses, or answers something else than JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        try:
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise PeerError(f"llama-server refused: {response.status} {response.read()[:400]!r}")
            if not body.get("stream"):
                yield json.loads(response.read())
                return
            for line in response:
                if line.startswith(b"error: "):
                    raise PeerError(f"llama-server failed: {line[:400]!r}")
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line.removeprefix(b"data: "))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PeerError(f"llama-server gave no reply ({error!r}): {self.said()}") from error
        finally:
            connection.close()


def _greedy(ids: Sequence[int], most: int) -> dict[str, Any]:
    # Without top_k every token of the vocabulary would go through its samplers, only for the first to be taken.
    return {"prompt": list(ids), "n_predict": most, "temperature": 0, "top_k": 1, "cache_prompt": False}


@contextmanager
def served(*arguments: object, program: Path | None = None) -> Iterator[LlamaServer]:
    """A llama-server with these arguments, for as long as the block runs, however it ends.

    Raises:
        MissingTool: it is not built.
        PeerError: it ended, or did not answer, while it was waited for.
    """
    port = _free_port()
    command = [str(word) for word in (program or peers.program("llama-server"), "--port", port, *arguments)]
    with tempfile.TemporaryDirectory() as scratch, _ended_by_sigterm():
        log = Path(scratch) / "log"
        with log.open("w") as said:
            # Its own session: a Ctrl-C is for us, who end it below, and not for it while we still read from it.
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                server = LlamaServer(port, log)
                _wait(server, process)
                yield server
            finally:
                _end(process)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """A SIGTERM is an exit, at which every `finally` runs: by itself it would leave the server behind."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may say what a signal does
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait(server: LlamaServer, process: subprocess.Popen[bytes]) -> None:
    begun = time.monotonic()
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=5).close()
            return
        except OSError as error:  # not listening yet, or 503 while it loads
            if process.poll() is not None or time.monotonic() - begun > START_S:
                raise PeerError(f"llama-server did not start: {server.said()}") from error
            time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
