"""Processes of a deployment found by what stands in their command lines, and killed at a moment of one's choice."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from support.flower_site import Running


def summing(out: Path, job: Running, round: int, over: str) -> None:
    """Wait until a phase of a round's secure sum is over, and so the next one under way; "": the first one."""
    notes, deadline = out / "secure" / "server" / f"round-{round:06d}" / "notes.json", time.monotonic() + 240
    while not (notes.exists() and (not over or over in json.loads(notes.read_text())["phases"])):
        assert job.process.poll() is None, job.said()
        assert time.monotonic() < deadline, job.said()
        time.sleep(0.05)


def working(gate: Path, job: Running, client: str, round: int) -> None:
    """Wait until a client of `synthetic.Slow` is in the midst of a round, in which it stays until `let_go`."""
    deadline = time.monotonic() + 240
    while not (gate / f"{client}.{round}").exists():
        assert job.process.poll() is None, job.said()
        assert time.monotonic() < deadline, f"{client} did not come to round {round}: {job.said()}"
        time.sleep(0.05)


def let_go(gate: Path, *rounds: int) -> None:
    for round in rounds:
        (gate / str(round)).touch()


def processes(*texts: str, without: tuple[str, ...] = ()) -> list[int]:
    """Processes with all these texts in their command line. There must be one."""
    found = [
        pid
        for pid, command in commands().items()
        if all(t in command for t in texts) and not any(t in command for t in without)
    ]
    assert found, texts
    return found


def commands() -> dict[int, str]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text and int(folder.name) != os.getpid():
            found[int(folder.name)] = text
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
