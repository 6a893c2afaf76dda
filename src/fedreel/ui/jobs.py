"""The queue of runs: one after another, kept in files, so that it outlives the server. `fedreel jobs` shows it too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedreel.errors import RunError
from fedreel.machine.alive import alive, interrupt, process
from fedreel.machine.files import write_atomic
from fedreel.ui.board import read_now

WAITING, RUNNING, ENDED = "waiting", "running", ("done", "failed", "stopped", "interrupted", "cancelled")
EVERY = 0.5  # seconds between two looks at the queue
KEPT = 200  # jobs that have ended


@dataclass(frozen=True)
class Job:
    """A run that is wanted, under way or over. `settings` are what `--set` gets."""

    id: str
    out: str
    recipe: str
    settings: tuple[str, ...] = ()
    resume: bool = False
    state: str = WAITING
    process: Mapping[str, Any] = field(default_factory=dict)
    stopping: bool = False
    added: float = 0.0
    began: float | None = None
    ended: float | None = None
    code: int | None = None

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "fedreel", "run", self.recipe, "--out", self.out]
        return [*words, *(word for text in self.settings for word in ("--set", text)), *["--resume"] * self.resume]


Known = dict[str, tuple[tuple[int, int, int], Job | None]]  # files: by which stat they were read, what they hold


def read_jobs(folder: Path, known: Known | None = None) -> list[Job]:
    """All jobs of a queue in their order; a file that is none is passed over. What is `known` is not read again."""
    known = {} if known is None else known
    jobs = []
    for path in sorted(folder.glob("*.json")):
        try:
            found = path.stat()
        except OSError:
            continue
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if known.get(path.name, (None,))[0] != stamp:
            known[path.name] = (stamp, _job(path))
        jobs.append(known[path.name][1])
    return [job for job in jobs if job is not None]


def _job(path: Path) -> Job | None:
    try:
        told = json.loads(path.read_text())
        return Job(**{**told, "settings": tuple(told["settings"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


class Queue:
    """Runs the jobs of a folder, one at a time, each as `fedreel run` in a process of its own. That process outlives a
    server that is killed; the next one finds it by what the folder says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._known: Known = {}
        self._thread = threading.Thread(target=self._work, daemon=True, name="queue")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Nothing is begun any more. A run that is under way goes on."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def jobs(self) -> list[Job]:
        return read_jobs(self.folder, self._known)

    def add(self, recipe: str, out: Path, settings: tuple[str, ...] = (), resume: bool = False) -> Job:
        """At the end of the queue. A folder is in it once."""
        with self._lock:
            jobs = self.jobs()
            if any(job.out == str(out) and job.state in (WAITING, RUNNING) for job in jobs):
                raise RunError("this run is in the queue already", where=str(out))
            number = max([int(job.id) for job in jobs if job.id.isdigit()], default=0) + 1
            job = Job(f"{number:06}", str(out), recipe, settings, resume, added=time.time())
            self._keep(job)
        return job

    def cancel(self, id: str) -> None:
        """Take a job out that has not begun, or one that has failed."""
        with self._lock:
            for job in self.jobs():
                if job.id == id and job.state == WAITING:
                    self._keep(replace(job, state="cancelled", ended=time.time()))
                elif job.id == id and job.state == "failed":
                    self._forget(job)

    def stop(self, run: Path) -> bool:
        """What Ctrl-C does, to whoever works in this folder; False if nobody does."""
        with self._lock:
            for job in self.jobs():
                if job.out == str(run) and job.state == RUNNING:
                    self._keep(replace(job, stopping=True))
                    return interrupt(job.process) or interrupt(read_now(run))
        return interrupt(read_now(run))

    def log(self, id: str, most: int = 8000) -> str:
        """The end of what a job has printed."""
        try:
            content = (self.folder / f"{id}.log").read_bytes()
        except OSError:
            return ""
        return content[-most:].decode(errors="replace")

    def _work(self) -> None:
        while not self._ending.wait(EVERY):
            try:
                with self._lock:
                    self._turn()
            except OSError:  # a full disk, a folder that is gone: the next turn tries again
                continue

    def _turn(self) -> None:
        jobs = self.jobs()
        for job in jobs:
            if job.state == RUNNING:
                self._look_after(job)
        if not any(job.state == RUNNING for job in self.jobs()):
            for job in jobs:
                if job.state == WAITING:
                    self._begin(job)
                    break
        for old in [job for job in jobs if job.state in ENDED][:-KEPT]:
            self._forget(old)

    def _begin(self, job: Job) -> None:
        job = replace(job, state=RUNNING, began=time.time())
        self._keep(job)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with open(self.folder / f"{job.id}.log", "wb") as log:
            child = subprocess.Popen(
                job.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C for the server is not for the run
            )
        self._children[job.id] = child
        self._keep(replace(job, process=process(child.pid)))

    def _look_after(self, job: Job) -> None:
        """A child of ours tells how it ended. One that an earlier server began is judged by what it left."""
        child = self._children.get(job.id)
        if child is not None:
            code = child.poll()
            if code is None:
                return
            del self._children[job.id]
        else:
            if alive(job.process) or read_now(Path(job.out)):
                return
            code = None
        self._keep(replace(job, state=_ending(job, code), ended=time.time(), code=code))

    def _forget(self, job: Job) -> None:
        for suffix in (".json", ".log"):
            (self.folder / f"{job.id}{suffix}").unlink(missing_ok=True)

    def _keep(self, job: Job) -> None:
        write_atomic(self.folder / f"{job.id}.json", json.dumps(asdict(job), indent=1) + "\n")


def _ending(job: Job, code: int | None) -> str:
    if code == 0 or _complete(Path(job.out)):
        return "done"
    if job.stopping or code in (130, -signal.SIGINT):
        return "stopped"
    return "interrupted" if code is None or code < 0 else "failed"


def _complete(run: Path) -> bool:
    try:
        return json.loads((run / "summary.json").read_text()).get("complete") is True
    except (OSError, ValueError, AttributeError):
        return False
