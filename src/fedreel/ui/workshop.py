"""Work that takes a while, asked for by pages: one thing after another, in a process of its own that is kept warm."""

from __future__ import annotations

import json
import queue
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedreel.errors import DataError
from fedreel.machine.files import write_atomic
from fedreel.ui.worker import ANSWER

ASKED, WRONG = "ask.json", "wrong.json"
NAME = re.compile(r"[0-9]{14}-[0-9a-f]{8}")
KEPT = 100  # answers


@dataclass(frozen=True)
class Ask:
    """Something that was asked for: in which state it is, how far, and what came of it."""

    id: str
    kind: str
    options: dict[str, Any]
    shown: dict[str, str]  # what the page says of it
    state: str  # waiting, working, done, failed, stopped, interrupted
    what: str = ""
    share: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] = field(default_factory=dict)


class Workshop:
    """Each thing that is asked for has a folder, so answers outlive the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._waiting: queue.Queue[str | None] = queue.Queue()
        self._known: dict[str, tuple[str, str, float]] = {}  # state, what, share
        self._process: subprocess.Popen[str] | None = None
        self._at, self._closing = "", False
        self._thread = threading.Thread(target=self._work, daemon=True, name="workshop")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._waiting.put(None)
        if self._process is not None:
            self._process.kill()

    def ask(self, kind: str, options: dict[str, Any], shown: dict[str, str]) -> str:
        """Its name, by which to look for the answer."""
        id = f"{time.strftime('%Y%m%d%H%M%S')}-{secrets.token_hex(4)}"
        (self.folder / id).mkdir()
        told = {"kind": kind, "options": options, "shown": shown}
        write_atomic(self.folder / id / ASKED, json.dumps(told), sync=False)
        self._known[id] = ("waiting", "", 0.0)
        self._waiting.put(id)
        for old in self.ids()[KEPT:]:
            shutil.rmtree(self.folder / old, ignore_errors=True)
        return id

    def ids(self) -> list[str]:
        """The newest first."""
        return sorted((path.name for path in self.folder.iterdir() if NAME.fullmatch(path.name)), reverse=True)

    def look(self, id: str) -> Ask:
        """How something stands."""
        told = _read(self.folder / id / ASKED) if NAME.fullmatch(id) else {}
        if not told:
            raise DataError("there is no such answer", where=id)
        answer, error = _read(self.folder / id / ANSWER), _read(self.folder / id / WRONG)
        state, what, share = self._known.get(id, ("interrupted", "", 0.0))
        if answer:
            state = "done"
        elif error:
            state = error.pop("state", "failed")
        return Ask(id, told["kind"], told["options"], told["shown"], state, what, share, answer, error)

    def stop(self, id: str) -> None:
        if self._known.get(id, ("",))[0] == "waiting":
            self._end(id, "stopped", {"problem": "It was stopped."})
        elif self._at == id and self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def forget(self, id: str) -> None:
        """The answer, and all files of it."""
        self.stop(id)
        if NAME.fullmatch(id):
            shutil.rmtree(self.folder / id, ignore_errors=True)

    def _work(self) -> None:
        while (id := self._waiting.get()) is not None:
            if self._known[id][0] == "waiting" and (self.folder / id).is_dir():
                self._at = id
                self._known[id] = ("working", "starting", 0.0)
                self._carry_out(id)
                self._at = ""

    def _carry_out(self, id: str) -> None:
        told = _read(self.folder / id / ASKED)
        order = {"id": id, "folder": str(self.folder / id), "kind": told["kind"], "options": told["options"]}
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                said = json.loads(line)
                if said.get("id") != id:
                    continue
                if "ended" in said:
                    self._end(id, said["ended"], said.get("error", {}))
                    return
                self._known[id] = ("working", str(said["what"]), float(said["share"]))
        except OSError:
            pass  # it is gone
        self._process = None
        if self._closing:
            return
        problem = "The process that worked on it died. A decoder that crashes on a damaged video does that."
        self._end(id, "failed", {"problem": problem})

    def _end(self, id: str, state: str, error: dict[str, str]) -> None:
        if error and (self.folder / id).is_dir():
            write_atomic(self.folder / id / WRONG, json.dumps({"state": state, **error}), sync=False)
        self._known[id] = (state, "", 1.0)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedreel.ui.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        return self._process


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
