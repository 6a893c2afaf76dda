"""`fedreel status`: what a server's owner wants to know at a glance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fedreel.runs.reading import read_metrics, read_summary
from fedreel.sites.server import ServerFolder


def show(folder: Path, say: Callable[[str], None]) -> None:
    """The server, each site, each job; and what to do next."""
    server = ServerFolder(folder)
    sites, running = server.sites(), server.running
    say(f"server   {server.path}: {'running' if running else 'not running'}, port {server.config.port}")
    nodes = server.nodes() if running else {}
    for name, site in sites.items():
        node = nodes.get(site["node"], {})
        since = f" since {node['online-at']}" if node.get("status") == "online" else ""
        say(f"site     {name}: {node.get('status', 'enrolled')}{since}")
    jobs = sorted((server.path / "jobs").glob("*.json"))
    for job in jobs:
        say("job      " + _job(Path(json.loads(job.read_text())["out"])))
    if not running:
        say(f"Next: fedreel server start {folder}")
    elif not sites:
        say("Next: fedreel server enroll SITE.PUB")
    elif not jobs:
        say(f"Next: fedreel submit RECIPE --out DIR --server {folder}")


def _job(out: Path) -> str:
    summary = read_summary(out)
    if summary.get("complete"):
        return f"{out}: finished, {summary['rounds']} rounds"
    if not (out / "metrics.jsonl").exists():
        return f"{out}: not started, or moved elsewhere"
    rounds = [row["round"] for row in read_metrics(out, "train")]
    return f"{out}: not finished, {max(rounds, default=0)} rounds done; continue with: fedreel submit ... --resume"
