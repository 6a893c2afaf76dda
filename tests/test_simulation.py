"""The simulation as a person starts it: Ctrl-C leaves nothing behind. That it ends as the local engine does is in
test_conformance.py."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from support.descendants import descendants, running
from support.flower_site import Running, job_file, toy_recipe

pytest.importorskip("ray", reason="needs the extra `flower`")
pytestmark = pytest.mark.slow

SIMULATED: dict[str, Any] = {"engine": {"name": "flower-sim"}}


def test_ctrl_c_leaves_nothing_running_and_says_how_to_go_on(tmp_path: Path) -> None:
    job_file(tmp_path / "job.toml", toy_recipe(rounds=3, seconds=5, **SIMULATED))
    with Running("run", tmp_path / "job.toml", "--out", tmp_path / "run", log=tmp_path / "said") as job:
        deadline = time.monotonic() + 240
        while not (tmp_path / "run" / "clients").exists():  # the first client has worked: in the midst of a round
            assert job.process.poll() is None, job.said()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        started = descendants(job.process.pid)
        assert len(started) > 5  # SuperLink, SuperExec, the simulation, Ray's processes and actors
        os.kill(job.process.pid, signal.SIGINT)
        assert job.process.wait(120) == 130
    assert "go on with: fedreel run" in job.said()
    assert not running(started)
