"""One policy's learning in one process, and the file in which it outlives the process.

Written when an engine is gone, when its model is closed and when the process ends; and while it serves, after a request
has ended, at most once in `EVERY_S`. Then the state becomes text between two rounds (some 20 ms for a megabyte; `auto`
has a few kilobytes) and a thread does the rest: reading the file, merging, the disk.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from firesteel.errors import DamagedState
from firesteel.policy.base import Policy
from firesteel.store.file import Learned, Say, keep, now, set_aside, taken
from firesteel.store.owner import Owner

EVERY_S: Final = 30.0


class Memory:
    """Takes up what the policy's file holds, and keeps what it learns.

    Nothing here raises for what is on the disk or for a disk that cannot be written: it is a line for the user.

    Args:
        policy: as new.
        folder: of the store; created when there is something to write.
        owner: what is learned belongs to it.
        say: takes lines, also from another thread.
        clock: seconds; tests give a scripted one.
    """

    def __init__(
        self,
        policy: Policy,
        folder: Path,
        owner: Owner,
        *,
        say: Say = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy, self.file = policy, folder / owner.file_name()
        self.rounds = self.requests = 0
        self._owner, self._say, self._clock = owner, say, clock
        self._written_at = clock()
        self._unwritten = False
        self._writing = threading.Lock()
        self._complained = False
        self._recall()

    def after(self, ended: int) -> None:
        """The policy has learned from one more round, in which `ended` requests came to their end."""
        self.rounds += 1
        self.requests += ended
        self._unwritten = True
        if ended and self._clock() - self._written_at >= EVERY_S and not self._writing.locked():
            self._written_at = self._clock()
            if (snapshot := self._snapshot()) is not None:
                threading.Thread(target=self._write, args=snapshot, name="firesteel-store").start()

    def save(self) -> None:
        """Write what is not written yet, if anything is; returns when it is on the disk. Not during a round."""
        if self._unwritten and (snapshot := self._snapshot()) is not None:
            self._write(*snapshot)

    def _recall(self) -> None:
        learned = taken(self.file, self._say).get(self.policy.name)
        if learned is None:
            return
        try:
            self.policy.load(learned.state)
        except DamagedState as error:
            set_aside(self.file, str(error), self._say)
        else:
            self.rounds, self.requests = learned.rounds, learned.requests

    def _snapshot(self) -> tuple[str, int, int] | None:
        """The state as text, which later rounds do not change, its rounds and its requests."""
        self._unwritten = False
        try:
            return json.dumps(self.policy.state(), allow_nan=False), self.rounds, self.requests
        except (TypeError, ValueError) as error:
            self._complain(f"what {self.policy.name} learned is not kept: its state is not JSON ({error})")
            return None

    def _write(self, text: str, rounds: int, requests: int) -> None:
        learned = Learned(now(), rounds, requests, json.loads(text))
        with self._writing:
            try:
                keep(self.file, self._owner, self.policy.name, learned, self._say)
            except OSError as error:
                self._unwritten = True
                reason = error.strerror or type(error).__name__
                self._complain(f"what {self.policy.name} learned is not kept: {self.file} cannot be written ({reason})")

    def _complain(self, line: str) -> None:
        """Once: what cannot be kept now cannot be kept in 30 seconds either."""
        if not self._complained:
            self._say(line)
        self._complained = True
