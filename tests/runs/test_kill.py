"""kill -9 at any moment, then --resume: the end is the same to the bit as that of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.started import end, start

SCRIPT = Path(__file__).parents[1] / "support" / "killed_run.py"


class Forks:
    """The process that forks runs for us."""

    def __init__(self) -> None:
        self.process = start(
            [sys.executable, SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # what has touched a GPU cannot be forked
        )

    def run(self, out: Path, kill: dict[str, Any] | None = None, method: str = "fedbn") -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"out": str(out), "method": method, "kill": kill}) + "\n")
        self.process.stdin.flush()
        said: dict[str, Any] = {}
        while "ended" not in said:
            said |= json.loads(self.process.stdout.readline())
        return said

    def close(self) -> None:
        end(self.process)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with closing(Forks()) as forks:
        yield forks


@pytest.fixture(scope="module")
def undisturbed(forks: Forks) -> Iterator[tuple[dict[str, Any], int, float]]:
    with in_memory() as folder:
        forks.run(folder / "first")  # warms caches, so that the time of the second tells how long a run lasts
        out = folder / "run"
        said = forks.run(out)
        assert said["ended"]["code"] == 0, said
        yield outcome(out), said["calls"], said["seconds"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


@contextmanager
def in_memory() -> Iterator[Path]:
    """A process that is killed loses nothing the kernel has, so a memory file system tells as much, much faster."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as name:
        yield Path(name)


def outcome(out: Path) -> dict[str, Any]:
    """All that a run leaves behind, without times."""
    files = {str(p.relative_to(out)): p.read_bytes() for p in sorted((out / "model").glob("*.safetensors"))}
    newest = {c.name: sorted(c.glob("*.safetensors"))[-1] for c in (out / "clients").iterdir()}
    files |= {f"{c}/{p.name}": p.read_bytes() for c, p in newest.items()}
    rows = []
    for line in (out / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for key in ("seconds", "training_seconds", "waiting_seconds"):
            row.pop(key, None)
        rows.append(row)
    summary = json.loads((out / "summary.json").read_text())
    del summary["wall_seconds"], summary["waiting_for_data"]
    return {"files": files, "metrics": rows, "summary": summary}


def finish(forks: Forks, out: Path, method: str = "fedbn") -> dict[str, Any]:
    said = forks.run(out, method=method)
    assert said["ended"]["code"] == 0, said
    left = [p for p in out.rglob("*") if p.name.endswith(".tmp") and p.parent.name != "clients"]
    assert not [p for p in left if "checkpoint" in p.parts], left
    return outcome(out)


@pytest.mark.parametrize("when", ["before", "after", "torn"])
def test_killed_at_a_write(forks: Forks, undisturbed: Any, folder: Path, when: str) -> None:
    """Points spread over all calls that touch the disk: state, metrics, checkpoint, model, summary."""
    expected, calls, _ = undisturbed
    killed = 0
    for at in range(1, calls, max(1, calls // 14)):
        out = folder / str(at)
        killed += forks.run(out, {"at": at, "when": when})["ended"]["killed"]
        assert finish(forks, out) == expected, f"killed {when} call {at}"
    assert killed >= 13


def test_killed_at_random_moments(forks: Forks, undisturbed: Any, folder: Path) -> None:
    expected, _, seconds = undisturbed
    rng = random.Random(0)
    for i in range(12):
        out, moment = folder / str(i), rng.uniform(0.0, seconds)
        while not forks.run(out, {"after": moment})["ended"]["killed"]:
            shutil.rmtree(out)
            moment /= 2
        assert finish(forks, out) == expected


def test_killed_over_and_over(forks: Forks, undisturbed: Any, folder: Path) -> None:
    """The same run dies every few writes, while it resumes too."""
    expected, _, _ = undisturbed
    deaths = 0
    for at in range(20, 40):
        if not forks.run(folder / "run", {"at": at, "when": "after"})["ended"]["killed"]:
            break
        deaths += 1
    assert deaths >= 3
    assert finish(forks, folder / "run") == expected


def test_orders_that_outlast_their_rounds_outlive_their_server(forks: Forks, folder: Path) -> None:
    """Killed at a write, with clients at work whose orders are of earlier rounds."""
    calls = forks.run(folder / "whole", method="fedbuff")["calls"]
    expected, killed = outcome(folder / "whole"), 0
    for at in range(calls // 3, calls, max(1, calls // 9)):
        out = folder / str(at)
        killed += forks.run(out, {"at": at, "when": "after"}, "fedbuff")["ended"]["killed"]
        assert finish(forks, out, "fedbuff") == expected, f"killed after call {at}"
        checkpoints = [json.loads(file.read_text()) for file in (out / "checkpoint").glob("*/state.json")]
        needed = {name for checkpoint in checkpoints for name in checkpoint["versions"]}
        assert needed == {file.stem for file in (out / "checkpoint" / "versions").iterdir()}
    assert killed >= 5
