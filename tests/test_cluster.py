"""Two hosts, each a network namespace of its own, in one Ray cluster: a run ends there as on `local`, also if an actor
is killed in the midst of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from fedreel.runs.run import run
from support.conformance_engines import Outcome, assert_same_end
from support.flower_site import Running, environment, job_file, toy_recipe
from support.hosts import Hosts, ray_on
from support.synthetic import Where
from support.toy import Toy

pytest.importorskip("ray", reason="needs the extra `flower`")
pytestmark = pytest.mark.slow

CLIENTS, ROUNDS = 6, 2


@pytest.fixture
def cluster() -> Iterator[tuple[Hosts, str]]:
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(closing(Hosts("other")))
        except OSError as error:
            pytest.skip(f"network namespaces are not permitted here ({error})")
        yield hosts, stack.enter_context(ray_on(hosts, 1, environment()))


def test_a_run_on_two_hosts_ends_as_on_local_though_an_actor_is_killed(
    cluster: tuple[Hosts, str], tmp_path: Path
) -> None:
    hosts, address = cluster
    notes = tmp_path / "notes"
    notes.mkdir()
    method = {"name": "where", "folder": str(notes), "seconds": 0.5}
    task: dict[str, Any] = {"name": "toy", "clients": CLIENTS}
    recipe = toy_recipe(ROUNDS, task=task, method=method, engine={"name": "flower-sim", "address": address})
    job_file(tmp_path / "job.toml", recipe)
    words = ("run", tmp_path / "job.toml", "--out", tmp_path / "sim")
    with Running(*words, log=tmp_path / "said", prefix=hosts.inside("hub")) as job:
        there = _wait_for(notes, os.stat(f"/run/netns/{hosts.space('other')}").st_ino, job)
        os.kill(there, signal.SIGKILL)
        assert job.process.wait(240) == 0, job.said()
    _wait_for_end(hosts)
    notes_of = {file.name: int(file.name.split(".")[2]) for file in notes.iterdir()}
    spaces = {os.stat(f"/run/netns/{hosts.space(name)}").st_ino for name in ("hub", "other")}
    for round in range(1, ROUNDS + 1):
        assert {host for name, host in notes_of.items() if name.split(".")[1] == str(round)} == spaces
    assert len({name.split(".")[3] for name in notes_of}) == 4  # two actors, and two in their place
    local = toy_recipe(ROUNDS, task=task, method=method)
    run(local, tmp_path / "local", quiet=True, task=Toy(clients=CLIENTS), method=Where(folder=str(notes), seconds=0))
    assert_same_end(_outcome(tmp_path / "local"), _outcome(tmp_path / "sim"))


def _wait_for(notes: Path, host: int, job: Running) -> int:
    """The process that works for a client on this host, as soon as one does."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert job.process.poll() is None, job.said()
        for file in notes.glob(f"*.{host}.*"):
            return int(file.name.split(".")[3])
        time.sleep(0.05)
    raise AssertionError(job.said())


def _wait_for_end(hosts: Hosts) -> None:
    """Until no actor is left: Ray ends them when the run has ended."""
    deadline = time.monotonic() + 60
    while any("ClientAppActor" in called for name in ("hub", "other") for called in hosts.running(name).values()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _outcome(run: Path) -> Outcome:
    return Outcome(run, {f"c{i}": run / "clients" / f"c{i}" for i in range(CLIENTS)})
