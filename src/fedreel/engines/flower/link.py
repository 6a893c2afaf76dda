"""The engine's end of the line to a SuperLink: starts our Flower app there and talks with its server side."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from fedreel.engines.flower.pipe import Frame, receive, send
from fedreel.engines.flower.processes import last_lines, program, quiet_environment
from fedreel.errors import RunError

_ANSWER = 120.0  # seconds that the SuperLink may take to accept our app, on a busy machine
_ACCEPTED = 180.0  # seconds that it may take to start what it has accepted

APP = """
[project]
name = "fedreel-relay"
version = "1.0.0"
description = "Carries frames between fedreel's processes"
license = "Apache-2.0"
dependencies = ["flwr>=1.41.0"]

[tool.flwr.app]
publisher = "fedreel"

[tool.flwr.app.components]
serverapp = "fedreel.engines.flower.relay:server_app"
clientapp = "fedreel.engines.flower.relay:client_app"

[tool.flwr.app.config]
socket = ""
silence = 0.0
"""


class Lost(Exception):
    """The line to the SuperLink broke."""


class Link:
    """A running Flower app whose server side is connected to us. `home` is the folder of Flower's configuration that
    names the SuperLink `fedreel`. A node that has been silent for `silence` seconds is asked whether it is there, by
    which messages that got lost at a SuperNode are found out; 0: none is, as in a simulation, where nodes do not take
    them one after another. Closing the link ends the app."""

    def __init__(
        self,
        home: Path,
        *,
        options: tuple[str, ...] = (),
        silence: float = 0.0,
        wait: float = 60,
        log: Path | None = None,
    ) -> None:
        self.home, self.options, self.silence, self.log = home, options, silence, log
        self._folder = Path(tempfile.mkdtemp(prefix="fedreel-"))  # a short path: sockets have 108 characters
        self._pipe: Connection | None = None
        self._numbers = itertools.count(1)
        self.events: queue.Queue[Frame | None] = queue.Queue()  # None: the line broke
        try:
            self._listener = Listener(str(self._folder / "s"), "AF_UNIX")
            self._arrivals: queue.Queue[Connection] = queue.Queue()
            threading.Thread(target=self._accept, daemon=True).start()
            (self._folder / "app").mkdir()
            (self._folder / "app" / "pyproject.toml").write_text(APP)
            self.connect(wait)
        except BaseException:
            self.close()
            raise

    def connect(self, wait: float) -> None:
        """Start the app and wait until its server side has called us; tries again while the SuperLink is away."""
        deadline = time.monotonic() + wait
        while True:
            problem = self._run_app()
            if not problem:
                break
            if time.monotonic() > deadline:
                raise RunError(
                    "the server does not accept the job",
                    where=str(self.home.parent),
                    found=problem,
                    hint="is it running? start it with `fedreel server start`",
                )
            time.sleep(1)
        try:
            self._pipe = self._arrivals.get(timeout=max(_ACCEPTED, wait))
        except queue.Empty:
            raise RunError(
                "the job was accepted but did not start",
                where=str(self.home.parent),
                found=last_lines(self.log) if self.log else "",
            ) from None
        self.events = queue.Queue()
        threading.Thread(target=self._read, args=(self._pipe, self.events), daemon=True).start()

    def send(self, what: str, *, content: Frame | None = None, node: str = "", ttl: float = 0, number: int = 0) -> int:
        """Hand a frame to the app; returns the number under which its answer will come."""
        number = number or next(self._numbers)
        head = {"what": what, "number": number, "node": node, "ttl": ttl, "content": content.head if content else None}
        if self._pipe is None:
            raise Lost
        try:
            send(self._pipe, Frame(head, content.arrays if content else {}))
        except OSError as error:
            raise Lost from error
        return number

    def event(self, timeout: float) -> Frame | None:
        """The next frame of the app, None if there was none in time; raises Lost if the line broke."""
        try:
            frame = self.events.get(timeout=timeout)
        except queue.Empty:
            return None
        if frame is None:
            raise Lost
        return frame

    def nodes(self, timeout: float = 30) -> dict[str, str]:
        """Who is there now: node id -> when it came. For use while nothing is under way."""
        number = self.send("nodes")
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            frame = self.event(1)
            if frame is not None and frame.head["number"] == number:
                return frame.head["nodes"]
        raise Lost

    def close(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                self._pipe.close()
            self._pipe = None
        with contextlib.suppress(OSError, AttributeError):
            self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run_app(self) -> str:
        """Submit the app; returns what went wrong, if anything."""
        config = f'socket="{self._folder / "s"}" silence={float(self.silence)}'
        command = [program("flwr"), "run", str(self._folder / "app"), "fedreel", "--run-config", config]
        try:
            done = subprocess.run(
                [*command, *self.options, "--format", "json"],
                env=quiet_environment(self.home),
                capture_output=True,
                text=True,
                timeout=_ANSWER,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {_ANSWER:g} s"
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            return (done.stdout + done.stderr).strip()[-500:] or f"flwr run ended with {done.returncode}"
        return "" if answer.get("success") else str(answer.get("error-message", answer))[:500]

    def _accept(self) -> None:
        while True:
            try:
                self._arrivals.put(self._listener.accept())
            except OSError:
                return

    def _read(self, pipe: Connection, events: queue.Queue[Frame | None]) -> None:
        try:
            while True:
                events.put(receive(pipe))
        except (EOFError, OSError, ValueError, TypeError):  # TypeError: closed by `close` while it was read
            pass
        finally:
            events.put(None)
