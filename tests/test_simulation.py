"""The simulation as a person starts it: Ctrl-C leaves nothing behind. That it ends as the local engine does is in
test_conformance.py."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.descendants import descendants, running
from support.flower_site import Running, job_file, toy_recipe
from support.killing import working

pytest.importorskip("ray", reason="needs the extra `flower`")
pytestmark = pytest.mark.slow


def test_ctrl_c_leaves_nothing_running_and_says_how_to_go_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    method = {"name": "slow", "gate": str(gate)}
    job_file(tmp_path / "job.toml", toy_recipe(rounds=1, method=method, engine={"name": "flower-sim"}))
    with Running("run", tmp_path / "job.toml", "--out", tmp_path / "run", log=tmp_path / "said") as job:
        working(gate, job, "c0", 1)
        started = descendants(job.process.pid)
        assert len(started) > 5  # SuperLink, SuperExec, the simulation, Ray's processes and actors
        os.kill(job.process.pid, signal.SIGINT)
        assert job.process.wait(120) == 130
    assert "go on with: fedreel run" in job.said()
    assert not running(started)
