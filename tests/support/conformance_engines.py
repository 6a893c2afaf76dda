"""Where the jobs of the conformance suite run: one stage for each engine, started once and used by all its jobs."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedreel.data.kept_arrays import keep
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.relay import unwrap, wrap
from fedreel.engines.flower.workplace import Workplace
from fedreel.machine.cache import cache_folder
from fedreel.registry import METHODS, TASKS
from fedreel.runs.reading import read_metrics
from fedreel.runs.rundir import recipe_of
from fedreel.sites.site import SiteFolder, init
from support import conformance_jobs
from support.conformance_jobs import CACHED, CASES, CLIENTS, SITES, SYNTHETIC, Lent, run_case
from support.flower_site import Federation, allow_all, environment, make_peers
from support.started import start


@dataclass(frozen=True)
class Outcome:
    """What a job left: its run directory, and where each client's private state lies."""

    run: Path
    states: dict[str, Path]


Stage = Callable[[str], Outcome]  # from the name of a case
ROLES = tuple(dict.fromkeys(case.role or case.task for case in CASES.values()))
SETTINGS: dict[str, dict[str, Any]] = {  # of engines that do less by default, or more than is needed
    "streams": {"at_once": 2},
    "processes": {"workers": 2},
    "auto": {"workers": 2},
}


def local(data: Path, out: Path, once: Container[str] = ()) -> Stage:
    """What the other engines are held to. It also finds out how many rounds a case needs; those in `once` have one. A
    case whose clips are seen once is run twice, the second time with other numbers in the cache: whoever ends as that
    run did has read them."""

    def outcome(name: str) -> Outcome:
        if not (out / name).exists():
            rounds = 1 if name in once else CASES[name].rounds or 1
            if name in CACHED:
                run_case(CASES[name], data, out / "honest" / name, {"name": "local"}, rounds)
                falsify_seen()
            run_case(CASES[name], data, out / name, {"name": "local"}, rounds)
            if name not in once and CASES[name].rounds is None and any((out / name / "clients").rglob("*.safetensors")):
                shutil.rmtree(out / name)
                run_case(CASES[name], data, out / name, {"name": "local"}, 2)
        return all_here(out / name)

    return outcome


def falsify_seen() -> None:
    """Other numbers in place of all that frozen backbones have seen of clips."""
    for file in (cache_folder() / "features" / "clips").rglob("*.npy"):
        array = np.load(file)
        keep(file, array[::-1] * np.float32(1.5))


def stage(engine: str, data: Path, out: Path, rounds: Mapping[str, int]) -> AbstractContextManager[Stage]:
    """`rounds` of each case that is wanted. An engine that is not known here needs no more than its name."""
    if engine == "flower, frames":
        return _by_frames(data, out, rounds)
    if engine == "flower-sim":
        return _in_a_simulation(data, out, rounds)
    return _here(data, out, rounds, {"name": engine, **SETTINGS.get(engine, {})})


@contextmanager
def _here(data: Path, out: Path, rounds: Mapping[str, int], engine: dict[str, Any]) -> Iterator[Stage]:
    """In this process, a job when it is asked for."""

    def outcome(name: str) -> Outcome:
        run_case(CASES[name], data, out / name, engine, rounds[name])
        return all_here(out / name)

    yield outcome


def all_here(run: Path) -> Outcome:
    return Outcome(run, {client: run / "clients" / client for client in CLIENTS})


@contextmanager
def _in_a_simulation(data: Path, out: Path, rounds: Mapping[str, int]) -> Iterator[Stage]:
    """One simulation for all jobs: to start it takes longer than any of them."""
    from fedreel.engines.flower import cluster

    with (
        mock.patch.dict("os.environ", {"PYTHONPATH": environment()["PYTHONPATH"]}),
        closing(cluster.Simulation()) as simulation,
        mock.patch.object(cluster, "Simulation", return_value=Lent(simulation)),
        _here(data, out, rounds, {"name": "flower-sim"}) as outcome,
    ):
        yield outcome


@contextmanager
def at_sites(data: Path, out: Path, rounds: Mapping[str, int], federation: Federation) -> Iterator[Stage]:
    """A running server with its sites, and all jobs two at a time: most of the time a job waits for Flower, which asks
    for work all the while, and a site makes its worker anew whenever it turns to another job."""
    with closing(_Jobs(data, out, rounds, federation.server_folder)) as jobs:

        def outcome(name: str) -> Outcome:
            jobs.wait_for(name)
            return _at({site: federation.folder / site for site in SITES}, out / name)

        yield outcome


@contextmanager
def _by_frames(data: Path, out: Path, rounds: Mapping[str, int]) -> Iterator[Stage]:
    """Sites as they are, but nothing of Flower between them and the engine, and all in this process."""
    from fedreel.engines.flower import engine

    server, sites = out.with_name("server"), {name: out.with_name(name) for name in SITES}
    (server / "sites").mkdir(parents=True)
    (server / "server.toml").touch()
    for name, place in sites.items():
        (server / "sites" / f"{name}.pub").touch()
        (server / "sites" / f"{name}.json").write_text(json.dumps({"node": name}))
        init(place, name, {role: str(data / name / role) for role in ROLES}, "", "")
        allow_all(place, data / "moments" / "words.txt")
    make_peers(sites.values())
    link = NearLink({name: SiteFolder.open(place) for name, place in sites.items()})
    with _here(data, out, rounds, {"name": "flower", "server": str(server)}) as outcome:

        def at_sites(name: str) -> Outcome:
            with (
                mock.patch.dict(METHODS, {name: f"{cls.__module__}:{cls.__name__}" for name, cls in SYNTHETIC.items()}),
                mock.patch.dict(TASKS, {"toy": "support.toy:Toy"}),
                mock.patch.object(engine, "Link", return_value=link),
            ):
                return _at(sites, outcome(name).run)

        yield at_sites


def _at(sites: Mapping[str, Path], run: Path) -> Outcome:
    folder = json.loads((run / "run.json").read_text())["id"]
    clients = {client: site for site, its in SITES.items() for client in its}
    return Outcome(
        run, {client: sites[site] / "runs" / folder / "clients" / client for client, site in clients.items()}
    )


def summary(outcome: Outcome) -> dict[str, Any]:
    return json.loads((outcome.run / "summary.json").read_text())


def assert_same_end(expected: Outcome, found: Outcome, close: float = 0.0) -> None:
    """Models, every client's private state in all generations, metrics and traffic: the same bits, or nearly. At sites
    nobody knows the noise of a private run: there it is what was spent."""
    spent = [[(row["round"], row["epsilon"]) for row in read_metrics(o.run, "privacy")] for o in (expected, found)]
    assert spent[0] == spent[1]
    if spent[0] and not recipe_of(found.run).privacy.seeded:
        models = [(o.run / "model" / "global.safetensors").read_bytes() for o in (expected, found)]
        assert len(models[0]) == len(models[1])
        assert models[0] != models[1]
        return
    _assert_same_tensors(expected.run / "model", found.run / "model", close)
    for client, folder in expected.states.items():
        _assert_same_tensors(folder, found.states[client], close)
    wanted, written = summary(expected), summary(found)
    assert written["metrics"] == pytest.approx(wanted["metrics"], rel=close, abs=close)
    assert written.get("trust", {}) == pytest.approx(wanted.get("trust", {}), rel=close, abs=close)
    secure = (expected.run / "secure").exists()  # messages name the run and the sites
    for key in ("rounds", "clients", *(() if secure else ("bytes_up", "bytes_down"))):
        assert written[key] == wanted[key]


def _assert_same_tensors(expected: Path, found: Path, close: float) -> None:
    """The same files with the same bytes, or the same tensors up to rounding."""
    files = sorted(path.name for path in expected.glob("*.safetensors"))
    assert files == sorted(path.name for path in found.glob("*.safetensors"))
    for file in files:
        if not close:
            assert (expected / file).read_bytes() == (found / file).read_bytes(), file
            continue
        ours = load_file(found / file)
        for name, tensor in load_file(expected / file).items():
            torch.testing.assert_close(ours[name], tensor, rtol=close, atol=close, msg=f"{file}: {name}")


class NearLink:
    """A line whose messages are answered at once, over the bytes that would travel."""

    def __init__(self, sites: Mapping[str, SiteFolder]) -> None:
        self._places = {name: Workplace(site.worker, name, None, site.runs) for name, site in sites.items()}
        self._numbers, self._events = itertools.count(1), deque[Frame]()

    def nodes(self, timeout: float = 30) -> dict[str, str]:
        return dict.fromkeys(self._places, "now")

    def send(self, what: str, *, content: Frame | None = None, node: str = "", ttl: float = 0, number: int = 0) -> int:
        number = number or next(self._numbers)
        if what == "nodes":
            self._events.append(Frame({"what": "nodes", "number": number, "nodes": self.nodes()}))
        elif content is not None:
            answer = _sent(self._places[node].answer(_sent(content)))
            self._events.append(Frame({"what": "reply", "number": number, "content": answer.head}, answer.arrays))
        return number

    def event(self, timeout: float) -> Frame | None:
        return self._events.popleft() if self._events else None

    def close(self) -> None:
        """The next job needs it."""


def _sent(frame: Frame) -> Frame:
    return unwrap(wrap(Frame(frame.head, {name: bytes(data) for name, data in frame.arrays.items()})))


class _Jobs:
    """The process that submits the jobs."""

    def __init__(self, data: Path, out: Path, rounds: Mapping[str, int], server: Path) -> None:
        out.mkdir()
        self.late = False
        self.out, self.codes, self.errors = out, dict[str, int](), out.with_name("jobs.err").open("w+")
        self.process = start(
            [sys.executable, Path(conformance_jobs.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment(),
            text=True,
        )
        assert self.process.stdin is not None
        order = {"jobs": dict(rounds), "at_once": 2, "data": str(data), "out": str(out), "server": str(server)}
        self.process.stdin.write(json.dumps(order))
        self.process.stdin.close()

    def wait_for(self, name: str) -> None:
        """Until the job has ended. If one test waited in vain, the others do not wait too."""
        assert not self.late, "an earlier job did not end in time"
        assert self.process.stdout is not None
        self.late = True
        while name not in self.codes:
            line = self.process.stdout.readline()
            assert line, Path(self.errors.name).read_text()[-3000:]
            row = json.loads(line)
            self.codes[row["job"]] = row["code"]
        self.late = False
        error = Path(f"{self.out / name}.error")
        if self.codes[name]:
            raise RuntimeError(error.read_text() if error.exists() else f"{name} ended with {self.codes[name]}")

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()
