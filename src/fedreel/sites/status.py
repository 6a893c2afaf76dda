"""`fedreel status`: what a server's owner wants to know at a glance."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreel.errors import RunError
from fedreel.runs.reading import read_progress, read_summary
from fedreel.sites.server import ServerFolder


@dataclass(frozen=True)
class Site:
    """An enrolled site: whether it is online, and since when."""

    name: str
    state: str
    since: str


@dataclass(frozen=True)
class Submitted:
    """A job that was submitted: finished, not finished, waiting for the owners of some sites, or not there."""

    out: Path
    state: str
    rounds: int
    received: int = 0  # bytes that came from the sites, and that went to them, without those of tests
    sent: int = 0
    waiting: tuple[str, ...] = ()
    epsilon: float | None = None  # what it has given away so far, where that is counted

    def __str__(self) -> str:
        if self.state == "waiting":
            return f"{self.out}: waits until it is approved at {', '.join(self.waiting)} (there: fedreel site jobs)"
        if self.state == "finished":
            return f"{self.out}: finished, {self.rounds} rounds{self._spent}"
        if self.state == "missing":
            return f"{self.out}: not started, or moved elsewhere"
        return (
            f"{self.out}: not finished, {self.rounds} rounds done{self._spent}; go on with: fedreel submit ... --resume"
        )

    @property
    def _spent(self) -> str:
        return "" if self.epsilon is None else f", epsilon {self.epsilon:.2f}"


@dataclass(frozen=True)
class Status:
    """A server. `problem` says why it could not be asked who is online."""

    path: Path
    running: bool
    port: int
    sites: list[Site]
    jobs: list[Submitted]
    problem: str = ""


def read_status(folder: Path) -> Status:
    """What the server's folder tells, and the server if it is running."""
    server = ServerFolder(folder)
    enrolled, running = server.sites(), server.running
    nodes, problem = dict[str, dict[str, str]](), ""
    try:
        nodes = server.nodes() if running else {}
    except RunError as error:
        problem = error.found or error.problem
    sites = []
    for name, site in enrolled.items():
        node = nodes.get(site["node"], {})
        since = node["online-at"] if node.get("status") == "online" else ""
        sites.append(Site(name, node.get("status", "enrolled"), since))
    jobs = [_job(json.loads(job.read_text())) for job in sorted((server.path / "jobs").glob("*.json"))]
    return Status(server.path, running, server.config.port, sites, jobs, problem)


def show(folder: Path, say: Callable[[str], None]) -> None:
    """The server, each site, each job; and what to do next."""
    found = read_status(folder)
    if found.problem:
        hint = "is it running? fedreel server start"
        raise RunError("the server does not answer", where=str(folder), found=found.problem, hint=hint)
    say(f"server   {found.path}: {'running' if found.running else 'not running'}, port {found.port}")
    for site in found.sites:
        say(f"site     {site.name}: {site.state}{f' since {site.since}' if site.since else ''}")
    for job in found.jobs:
        say(f"job      {job}")
    if not found.running:
        say(f"Next: fedreel server start {folder}")
    elif not found.sites:
        say("Next: fedreel server enroll SITE.PUB")
    elif not found.jobs:
        say(f"Next: fedreel submit RECIPE --out DIR --server {folder}")


def _job(note: dict[str, Any]) -> Submitted:
    out = Path(note["out"])
    if note.get("waiting"):
        return Submitted(out, "waiting", 0, waiting=tuple(note["waiting"]))
    summary = read_summary(out)
    if summary.get("complete"):
        rounds, received, sent = (int(summary.get(key, 0)) for key in ("rounds", "bytes_up", "bytes_down"))
        return Submitted(out, "finished", rounds, received, sent, epsilon=summary.get("privacy", {}).get("epsilon"))
    if not (out / "metrics.jsonl").exists():
        return Submitted(out, "missing", 0)
    done = read_progress(out)
    return Submitted(out, "not finished", done.round, done.bytes_up, done.bytes_down, epsilon=done.epsilon)
