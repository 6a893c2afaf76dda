"""Other programs, started so that they end when we do, whatever ends us; Flower's own without calls home."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedreel.errors import RunError
from fedreel.machine.processes import end_with_parent

_NEEDED = ("PATH", "PYTHONPATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONUNBUFFERED", "OMP_NUM_THREADS")
_MARK = "FEDREEL_STARTED_BY"  # in the environment of everything we start, so that grandchildren are found too


class Processes:
    """What one of our processes has started. `end` ends it all: children, their children, and those that hid."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self._started: list[subprocess.Popen[bytes]] = []
        self._known: set[tuple[int, str]] = set()  # process id and start time of all that we have seen of them

    def start(
        self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, user: str | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, its output appended to a log file. Another user gets of our
        environment, which may hold passwords, only what programs need to run."""
        env = quiet_environment() if env is None else env
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**(only_needed(env) if user else env), _MARK: self.mark},
                start_new_session=True,
                user=user,
                group=pwd.getpwnam(user).pw_gid if user else None,
                extra_groups=[] if user else None,
                preexec_fn=end_with_parent,
            )
        self._started.append(process)
        return process

    def remember(self) -> None:
        """Note all that descends from what we started, before parts of it end and their children are adopted away."""
        parents = {pid: (parent, since) for pid, parent, since in _running()}
        ours = {p.pid for p in self._started} | set(self._marked())
        while found := {pid for pid, (parent, _) in parents.items() if parent in ours and pid not in ours}:
            ours |= found
        self._known |= {(pid, parents[pid][1]) for pid in ours if pid in parents}

    def end(self, patience: float = 10) -> None:
        """Ask, wait, then insist."""
        self.remember()
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + patience
        while (alive := self._alive()) and time.monotonic() < deadline:
            for pid in alive:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
            time.sleep(0.3)
        for pid in self._alive():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.kill()
            process.wait()

    def _alive(self) -> list[int]:
        for process in self._started:
            process.poll()
        self.remember()
        return [pid for pid, _, since in _running() if (pid, since) in self._known]

    def _marked(self) -> Iterator[int]:
        """Running processes with our mark in their environment. (A process that names itself loses it.)"""
        wanted = f"{_MARK}={self.mark}".encode()
        for pid, _, _ in _running():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    yield pid


def _running() -> Iterator[tuple[int, int, str]]:
    """Process id, parent and start time of what runs here and is not a corpse. Nothing where there is no /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                yield int(folder.name), int(fields[1]), fields[19]


def quiet_environment(home: Path | None = None) -> dict[str, str]:
    """Our environment, with Flower and Ray kept from calling home and from installing anything."""
    env = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    env |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1"}
    bin_folder = str(Path(sys.executable).parent)
    env["PATH"] = bin_folder + os.pathsep + env.get("PATH", "")  # Flower starts its helpers by name
    if home is not None:
        env["FLWR_HOME"] = str(home)
    return env


def only_needed(env: Mapping[str, str]) -> dict[str, str]:
    """Where programs and modules lie, the language, and Flower's own settings."""
    return {name: value for name, value in env.items() if name in _NEEDED or name.startswith(("LC_", "FLWR_", "RAY_"))}


def program(name: str) -> str:
    """One of Flower's programs beside this Python; says how to install it where it is missing."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise RunError(
            "Flower is not installed",
            expected=str(path),
            hint="pip install 'fedreel[flower]' (Python 3.11 or later)",
        )
    return str(path)


def free_port() -> int:
    """A port of the loopback interface that nobody has. Somebody may take it at once: see `held_port`."""
    with held_port() as port:
        return port


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A port of the loopback interface that nobody is given for as long as this lasts, not even for a connection of
    theirs: a server that is told of it can listen on it."""
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers have it: both may have the port
        place.bind(("127.0.0.1", 0))
        yield place.getsockname()[1]


def is_open(port: int) -> bool:
    """Whether somebody listens on this port of the loopback interface."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def last_lines(log: Path, n: int = 12) -> str:
    """The end of a program's log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").strip().splitlines()[-n:])
    except OSError:
        return ""
