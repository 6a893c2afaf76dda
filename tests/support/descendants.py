"""What a process has started, and whether that still runs. Needs /proc."""

from __future__ import annotations

from pathlib import Path


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
