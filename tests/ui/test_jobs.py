"""The queue: one run after another, kept in files, whatever happens to the server or to a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest

from fedreel.errors import RunError
from fedreel.machine.alive import alive, process
from fedreel.ui import jobs
from fedreel.ui.jobs import Job, Queue, read_jobs
from support.tiny import cli

WORK = """
import json, os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
out, rest = Path(sys.argv[1]), sys.argv[2:]
out.mkdir(parents=True, exist_ok=True)
(out / "recipe.toml").touch()
(out / "began").open("a").write("x")
print("hello from", out.name, flush=True)
try:
    if "wait" in rest:
        time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
if "fail" in rest:
    sys.exit(2)
(out / "summary.json").write_text(json.dumps({"complete": True}))
"""


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job is a script of a few lines instead of a run: what the queue does with it is the same."""
    script = tmp_path / "work.py"
    script.write_text(WORK)
    monkeypatch.setattr(Job, "command", lambda job: [sys.executable, str(script), job.out, *job.settings])
    monkeypatch.setattr(jobs, "EVERY", 0.02)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def states(folder: Path) -> list[str]:
    return [job.state for job in read_jobs(folder)]


def test_jobs_run_one_after_another_and_end_as_they_ended(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "jobs")
    for name, words in (("a", ()), ("b", ("fail",)), ("c", ())):
        queue.add("r", tmp_path / name, words)
    queue.start()
    try:
        until(lambda: states(queue.folder) == ["done", "failed", "done"])
    finally:
        queue.close()
    told = queue.jobs()
    assert all(earlier.ended <= later.began for earlier, later in pairwise(told))  # type: ignore[operator]
    assert queue.log(told[1].id) == "hello from b\n"
    assert [job.code for job in told] == [0, 2, 0]
    for job in told:
        queue.cancel(job.id)  # only what has failed is taken out
    assert [job.id for job in queue.jobs()] == [told[0].id, told[2].id]


def test_stop_is_ctrl_c_and_resume_is_another_job(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "jobs")
    queue.add("r", tmp_path / "a", ("wait",))
    waiting = queue.add("r", tmp_path / "b")
    queue.start()
    try:
        until(lambda: (tmp_path / "a" / "began").exists())
        with pytest.raises(RunError, match="already"):
            queue.add("r", tmp_path / "a")
        queue.cancel(waiting.id)
        until(lambda: queue.stop(tmp_path / "a"))
        until(lambda: states(queue.folder) == ["stopped", "cancelled"])
        queue.add("r", tmp_path / "a", resume=True)
        until(lambda: states(queue.folder)[-1] == "done")
    finally:
        queue.close()
    assert (tmp_path / "a" / "began").read_text() == "xx"
    assert not (tmp_path / "b").exists()
    assert not queue.stop(tmp_path / "a")


def test_a_queue_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """A run outlives the server that began it. The next one waits for it, then begins what waits, and nothing twice."""
    first = Queue(tmp_path / "jobs")
    for name, words in (("a", ("wait",)), ("b", ())):
        first.add("r", tmp_path / name, words)
    first.start()
    until(lambda: (tmp_path / "a" / "began").exists())
    until(lambda: read_jobs(first.folder)[0].process)
    first.close()
    running = read_jobs(first.folder)[0]
    assert alive(running.process)
    second = Queue(tmp_path / "jobs")  # it has no children
    second.start()
    try:
        time.sleep(0.2)
        assert states(second.folder) == ["running", "waiting"]
        assert second.stop(tmp_path / "a")
        first._children[running.id].wait(60)  # its parent is this process, in whose place init would reap it
        until(lambda: states(second.folder) == ["stopped", "done"])
    finally:
        second.close()
    assert (tmp_path / "a" / "began").read_text() == "x"


def test_a_run_that_died_with_the_server_is_interrupted(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    known = process(child.pid)
    child.wait()
    queue = Queue(tmp_path / "jobs")
    for name, complete in (("a", False), ("b", True)):
        job = queue.add("r", tmp_path / name)
        text = json.dumps(asdict(replace(job, state="running", process=known)))
        (queue.folder / f"{job.id}.json").write_text(text)
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({"complete": complete}))
    queue.start()
    try:
        until(lambda: states(queue.folder) == ["interrupted", "done"])
    finally:
        queue.close()


def test_a_damaged_file_does_not_stop_the_queue(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "jobs")
    job = queue.add("r", tmp_path / "a")
    (queue.folder / "000000.json").write_text("{torn")
    (queue.folder / "x.json").write_text('{"id": "x"}')
    assert queue.jobs() == [job]


def test_the_command_shows_the_same_queue(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "runs" / ".ui" / "jobs")
    queue.add("recognition", tmp_path / "runs" / "a", ("round.rounds=3",))
    said = cli("jobs", "--runs", tmp_path / "runs")
    assert said.code == 0
    for word in ("waiting", "recognition round.rounds=3", " a "):
        assert word in said.out


def test_a_killed_job_is_interrupted_and_not_failed(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "jobs")
    queue.add("r", tmp_path / "a", ("wait",))
    queue.start()
    try:
        until(lambda: read_jobs(queue.folder)[0].process)
        os.kill(int(read_jobs(queue.folder)[0].process["pid"]), signal.SIGKILL)
        until(lambda: states(queue.folder) == ["interrupted"])
    finally:
        queue.close()
