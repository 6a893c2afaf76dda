"""Where the jobs of the conformance suite run: one stage for each engine, started once and used by all its jobs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from support import conformance_jobs
from support.conformance_jobs import CASES, CLIENTS, SITES, run_case
from support.flower_site import Federation, environment


@dataclass(frozen=True)
class Outcome:
    """What a job left: its run directory, and where each client's private state lies."""

    run: Path
    states: dict[str, Path]


Stage = Callable[[str], Outcome]  # from the name of a case
SETTINGS: dict[str, dict[str, Any]] = {"streams": {"at_once": 3}}  # of engines that do less by default


def local(data: Path, out: Path) -> Stage:
    """What the other engines are held to. It also finds out how many rounds a case needs."""

    def outcome(name: str) -> Outcome:
        if not (out / name).exists():
            run_case(CASES[name], data, out / name, {"name": "local"}, CASES[name].rounds or 1)
            if CASES[name].rounds is None and any((out / name / "clients").rglob("*.safetensors")):
                shutil.rmtree(out / name)
                run_case(CASES[name], data, out / name, {"name": "local"}, 2)
        return _all_here(out / name)

    return outcome


def stage(engine: str, data: Path, out: Path, rounds: Mapping[str, int]) -> AbstractContextManager[Stage]:
    """`rounds` of each case that is wanted. An engine that is not known here needs no more than its name."""
    if engine == "flower":
        return _at_sites(data, out, rounds)
    if engine == "flower-sim":
        return _in_a_simulation(data, out, rounds)
    return _here(data, out, rounds, {"name": engine, **SETTINGS.get(engine, {})})


@contextmanager
def _here(data: Path, out: Path, rounds: Mapping[str, int], engine: dict[str, Any]) -> Iterator[Stage]:
    """In this process, a job when it is asked for."""

    def outcome(name: str) -> Outcome:
        run_case(CASES[name], data, out / name, engine, rounds[name])
        return _all_here(out / name)

    yield outcome


def _all_here(run: Path) -> Outcome:
    return Outcome(run, {client: run / "clients" / client for client in CLIENTS})


@contextmanager
def _in_a_simulation(data: Path, out: Path, rounds: Mapping[str, int]) -> Iterator[Stage]:
    """One simulation for all jobs: to start it takes longer than any of them."""
    from fedreel.engines.flower import engine

    class Lent:
        """The simulation as one job sees it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(simulation, name)

        def close(self) -> None:
            """The next job needs it."""

    with (
        mock.patch.dict("os.environ", {"PYTHONPATH": environment()["PYTHONPATH"]}),
        closing(engine.Simulation(len(CLIENTS), threads=1)) as simulation,
        mock.patch.object(engine, "Simulation", return_value=Lent()),
        _here(data, out, rounds, {"name": "flower-sim"}) as outcome,
    ):
        yield outcome


@contextmanager
def _at_sites(data: Path, out: Path, rounds: Mapping[str, int]) -> Iterator[Stage]:
    """A server and two sites, and all jobs three at a time: most of the time a job waits for Flower."""
    sites = {name: data / name for name in SITES}
    roles = tuple(dict.fromkeys(case.task for case in CASES.values()))
    with (
        closing(Federation(out.with_name("federation"), sites, roles)) as federation,
        closing(_Jobs(data, out, rounds, federation.server_folder)) as jobs,
    ):

        def outcome(name: str) -> Outcome:
            jobs.wait_for(name)
            run = json.loads((out / name / "run.json").read_text())["id"]
            folders = {site: federation.folder / site / "runs" / run / "clients" for site in SITES}
            return Outcome(out / name, {c: folders[site] / c for site, clients in SITES.items() for c in clients})

        yield outcome


class _Jobs:
    """The process that submits the jobs."""

    def __init__(self, data: Path, out: Path, rounds: Mapping[str, int], server: Path) -> None:
        out.mkdir()
        self.out, self.codes, self.errors = out, dict[str, int](), out.with_name("jobs.err").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(conformance_jobs.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment(),
            text=True,
        )
        assert self.process.stdin is not None
        order = {"jobs": dict(rounds), "at_once": 3, "data": str(data), "out": str(out), "server": str(server)}
        self.process.stdin.write(json.dumps(order))
        self.process.stdin.close()

    def wait_for(self, name: str) -> None:
        assert self.process.stdout is not None
        while name not in self.codes:
            line = self.process.stdout.readline()
            assert line, Path(self.errors.name).read_text()[-3000:]
            row = json.loads(line)
            self.codes[row["job"]] = row["code"]
        error = Path(f"{self.out / name}.error")
        if self.codes[name]:
            raise RuntimeError(error.read_text() if error.exists() else f"{name} ended with {self.codes[name]}")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()
