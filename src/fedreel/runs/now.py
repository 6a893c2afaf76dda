"""now.json: what a run is doing at this moment, for whoever looks at its folder. It is gone when the run has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedreel.core.server import ServerState, Watcher
from fedreel.machine.alive import this_process
from fedreel.machine.files import write_atomic

NOW = "now.json"
OFTEN = 0.5  # seconds between two writings, at least
SHARE = 100  # and at least so many times as long as the last one took: it costs the run less than 1 %


class Now(Watcher):
    """Writes the process, the round, and who of the clients that were ordered to work waits, works, is done or has
    failed. A disk that is full or a folder that is gone is not this watcher's business."""

    def __init__(self, run: Path, rounds: int) -> None:
        self.path = run / NOW
        self._said: dict[str, Any] = {**this_process(), "began": time.time(), "round": 0, "rounds": rounds, "kind": ""}
        self._clients: dict[str, str] = {}
        self._working = 0  # clients that are
        self._next = 0.0

    def work_begins(self, round: int, kind: str, clients: Sequence[str]) -> None:
        self._said |= {"round": round, "kind": kind}
        self._clients, self._working = dict.fromkeys(clients, "waiting"), 0

    def client_is(self, client: str, state: str) -> None:
        self._working += (state == "working") - (self._clients.get(client) == "working")
        self._clients[client] = state
        if self._working and time.monotonic() >= self._next:  # between two clients nobody is at work, for no time
            self.write()

    def round_done(self, progress: ServerState, sync: Callable[[], None]) -> None:
        if time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        began = time.monotonic()
        with suppress(OSError):
            write_atomic(self.path, json.dumps({**self._said, "clients": self._clients}), sync=False)
        ended = time.monotonic()
        self._next = ended + max(OFTEN, SHARE * (ended - began))

    def close(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
