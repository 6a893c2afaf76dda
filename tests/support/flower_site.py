"""A server and sites of a test on loopback, started as a person would start them: by the command line."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import tomli_w

from fedreel.config import Recipe, RoundConfig, TrainConfig, TransferConfig, as_table, read_toml
from fedreel.engines.flower.processes import held_port
from fedreel.sites.peers import add_peer
from fedreel.sites.site import SiteFolder
from support.started import end, start
from support.warm import run_python

TESTS = Path(__file__).parent.parent
FEDREEL = [sys.executable, "-m", "fedreel"]
FORGETFUL = TESTS / "support" / "forgetful"
_held = ExitStack()


def environment(*first: Path) -> dict[str, str]:
    """Processes know the tests' own methods and the toy task, as an installed package would make them known. They look
    into the folders `first` before any other."""
    path = os.pathsep.join([*map(str, first), str(TESTS), str(TESTS / "plugin"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def toy_recipe(rounds: int, seconds: float = 0.0, **changes: Any) -> Recipe:
    """A job on the toy whose clients keep a head, a counter, their optimizer and what rounding left out, and take their
    time."""
    given = {
        "system": "toy",
        "device": "cpu",
        "task": {"name": "toy"},
        "method": {"name": "slow", "seconds": seconds},
        "train": TrainConfig(batch_size=4, lr=0.1, momentum=0.9, keep_optimizer=True),
        "round": RoundConfig(rounds=rounds, evaluate_every=rounds, min_answers=1.0),
        "transfer": TransferConfig(up="int8", down="changes"),  # remainders and models that sites must find again
    }
    if "secure" in changes:  # whose changes travel whole
        given["transfer"] = TransferConfig(down="changes")
    return Recipe(**{**given, **changes})


def job_file(path: Path, recipe: Recipe) -> Path:
    path.write_text(tomli_w.dumps(as_table(recipe)))
    return path


def free_port() -> int:
    """A port for a server that is to be started, or not: until this process ends, nobody else is given it."""
    return _held.enter_context(held_port())


def fedreel(*arguments: object, check: bool = True, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """A command to its end, in a process that need not import everything first."""
    done = run_python("-m", "fedreel", *arguments, env=environment(), timeout=timeout)
    if check and done.returncode:
        raise AssertionError(f"{done.args}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


class Running:
    """A command that stays: a server, a site or a job. Its output is in a file. It runs until it is told to `end`, or
    for as long as `with` lasts."""

    def __init__(
        self, *arguments: object, log: Path, prefix: tuple[str, ...] = (), path: tuple[Path, ...] = ()
    ) -> None:
        self.arguments, self.log, self.prefix, self.path = arguments, log, prefix, path
        self.start()

    def start(self) -> None:
        self.since = time.time()
        self.began = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as file:
            command = (*self.prefix, *FEDREEL, *self.arguments)
            self.process = start(command, env=environment(*self.path), stdout=file, stderr=subprocess.STDOUT)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def said(self) -> str:
        return self.log.read_text()[self.began :]

    def wait_for(self, text: str, timeout: float = 300) -> None:
        deadline = time.monotonic() + timeout
        while text not in self.said():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.arguments} did not say {text!r}:\n{self.said()}")
            time.sleep(0.2)

    def end(self) -> None:
        end(self.process)


class Federation:
    """A server and its sites in a folder. `sites` maps a site's name to its data folder, which holds one folder for
    each of `roles`, if there are any."""

    def __init__(self, folder: Path, sites: dict[str, Path], roles: tuple[str, ...] = ()) -> None:
        host = "127.0.0.1"
        self.folder, self.port, self.names = folder, free_port(), list(sites)
        self.server_folder, self.ca = folder / "server", folder / "server" / "ca.crt"
        fedreel("server", "init", self.server_folder, "--host", host, "--port", self.port, "--listen", host)
        _hold_link_port(self.server_folder / "server.toml")
        self.address = f"{host}:{self.port}"
        for name, data in sites.items():
            folders = [f"{role}={data / role}" for role in roles] or [str(data)]
            fedreel("site", "init", folder / name, *(word for text in folders for word in ("--data", text)))
            allow_all(folder / name, data.parent / "moments" / "words.txt")
            fedreel("server", "enroll", folder / name / "site.pub", "--server", self.server_folder)
        make_peers(folder / name for name in sites)
        self.server = Running("server", "start", self.server_folder, log=folder / "server.out")
        self.sites: dict[str, Running] = {}
        try:
            self.server.wait_for("Listening for sites")
            for name in sites:
                self.start_site(name)
            for site in self.sites.values():
                site.wait_for("waiting for work")
        except BaseException:
            self.close()
            raise

    def start_site(self, name: str, *path: Path) -> Running:
        where = ("--site", self.folder / name, "--server", self.address, "--ca", self.ca)
        self.sites[name] = Running("site", "start", *where, log=self.folder / f"{name}.out", path=path)
        return self.sites[name]

    def close(self) -> None:
        end(*(running.process for running in (*self.sites.values(), self.server)))


def _hold_link_port(settings: Path) -> None:
    """What `server init` wrote there may be somebody else's when the server is started, or started again."""
    settings.write_text(tomli_w.dumps({**read_toml(settings), "link_port": free_port()}))


def allow_all(site: Path, *files: Path) -> None:
    """A policy without refusals: the tests' methods send of every kind. Recipes may name these files."""
    with (site / "site.toml").open("a") as settings:
        settings.write(tomli_w.dumps({"files": {str(file): str(file) for file in files}}))
    (site / "policy.toml").write_text('refuse = []\n[jobs]\nallow = ["*"]\ndivisions = 0\n')


def make_peers(sites: Iterable[Path]) -> None:
    """Each site has the others' keys, as their owners would have handed them over."""
    places = list(sites)
    for place, other in itertools.permutations(places, 2):
        add_peer(SiteFolder.open(place), other / "site.pub")


def left_over(mark: str) -> list[str]:
    """Command lines of running processes that have this text in them. They are killed: one test that leaves something
    behind is enough."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z" and mark in text and int(folder.name) != os.getpid():
            found.append(text)
            with suppress(ProcessLookupError):
                os.kill(int(folder.name), signal.SIGKILL)
    return found
