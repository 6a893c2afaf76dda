"""The simulation as a person starts it: it ends as the local engine does, and leaves nothing behind, even by Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedreel.runs.run import run
from fedreel.runs.rundir import read_metrics
from support.flower_site import Running, fedreel, job_file, toy_recipe
from support.synthetic import Slow
from support.toy import Toy

pytest.importorskip("ray", reason="needs the extra `flower`")
pytestmark = pytest.mark.slow

SIMULATED: dict[str, Any] = {"engine": {"name": "flower-sim"}}


def descendants(pid: int) -> set[tuple[int, str]]:
    """Process id and start time of all that a process has started, and what that has started."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(folder.name)] = (int(fields[1]), fields[19])
    found = {pid}
    while more := {p for p, (parent, _) in parents.items() if parent in found and p not in found}:
        found |= more
    return {(p, parents[p][1]) for p in found - {pid}}


def running(processes: set[tuple[int, str]]) -> list[int]:
    alive = []
    for pid, since in processes:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and fields[19] == since:
            alive.append(pid)
    return alive


def test_a_simulated_run_writes_what_a_local_run_writes(tmp_path: Path) -> None:
    job = job_file(tmp_path / "job.toml", toy_recipe(rounds=3, **SIMULATED))
    said = fedreel("run", job, "--out", tmp_path / "run", timeout=300)
    assert "slow on toy: 3 rounds" in said.stdout
    run(toy_recipe(rounds=3), tmp_path / "local", quiet=True, task=Toy(), method=Slow(seconds=0))
    model = "model/global.safetensors"
    assert (tmp_path / "run" / model).read_bytes() == (tmp_path / "local" / model).read_bytes()
    ledgers = [(tmp_path / side / "ledger.jsonl").read_text().count('"departure"') for side in ("run", "local")]
    assert ledgers[0] == ledgers[1]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores for two clients at once")
def test_with_four_groups_a_client_waits_only_for_its_own_predecessor(tmp_path: Path) -> None:
    """The first client of one group begins only after the last of another has ended: were groups in step, for ever."""
    clients = [f"c{i}" for i in range(8)]
    order = np.random.default_rng([0, 0xF1]).permutation(8)
    groups = [[clients[i] for i in part] for part in np.array_split(order, 4)]
    settings = {"groups": 4, "folder": str(tmp_path), "held": groups[0][0], "until": groups[1][1]}
    changes = {"task": {"name": "toy", "clients": 8}, "method": {"name": "held", **settings}}
    job = job_file(tmp_path / "job.toml", toy_recipe(rounds=1, **SIMULATED, **changes))
    fedreel("run", job, "--out", tmp_path / "run", timeout=300)
    (drawn,) = read_metrics(tmp_path / "run", "groups")
    assert drawn["groups"] == groups
    ended = {name: (tmp_path / name).stat().st_mtime_ns for name in clients}
    assert ended[groups[1][1]] < ended[groups[0][0]] < ended[groups[0][1]]


def test_ctrl_c_leaves_nothing_running_and_says_how_to_go_on(tmp_path: Path) -> None:
    job_file(tmp_path / "job.toml", toy_recipe(rounds=3, seconds=5, **SIMULATED))
    job = Running("run", tmp_path / "job.toml", "--out", tmp_path / "run", log=tmp_path / "said")
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "clients").exists():  # the first client has worked: in the midst of a round
        assert job.process.poll() is None, job.said()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    started = descendants(job.process.pid)
    assert len(started) > 5  # SuperLink, SuperExec, the simulation, Ray's processes and actors
    os.kill(job.process.pid, signal.SIGINT)
    assert job.process.wait(60) == 130
    assert "go on with: fedreel run" in job.said()
    assert not running(started)
