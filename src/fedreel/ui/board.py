"""All runs of a folder at a glance, however many and however long: of each only its summary or its end is read, and
that only when its files have changed."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreel.machine.alive import alive
from fedreel.machine.tail import from_the_end
from fedreel.report.markup import finite
from fedreel.report.read import read_settings
from fedreel.report.run import Run, add_metrics
from fedreel.ui.places import leads_out, speakable

DEPTH = 4  # folders within folders
PACE = 5  # rounds by which the time left is told
MOST = 200  # records at the end of a run that are looked at
FILES = ("recipe.toml", "summary.json", "metrics.jsonl", "now.json")
Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Row:
    """What the list tells of a run. `seconds` it took so far, `left` it will take by the pace of its last rounds."""

    name: str
    state: str  # complete, running, interrupted
    system: str
    method: str
    task: str
    engine: str
    seed: str
    round: int
    rounds: int
    metric: str
    value: float | None
    seconds: float | None
    left: float | None
    changed: float


class Board:
    """The runs below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, tuple[Stamp, Row]] = {}

    def rows(self) -> list[Row]:
        """The newest first."""
        rows = []
        found = dict(find_runs(self.root))
        for name, folder in found.items():
            if leads_out(folder, self.root):
                continue
            stamp = stamps(folder)
            kept = self._known.get(name)
            if kept is None or kept[0] != stamp or kept[1].state == "running":  # it may have been killed
                self._known[name] = kept = (stamp, read_row(name, folder))
            rows.append(kept[1])
        for gone in self._known.keys() - found.keys():
            del self._known[gone]
        return sorted(rows, key=lambda row: (row.state != "running", -row.changed, row.name))


def find_runs(root: Path, depth: int = DEPTH) -> Iterator[tuple[str, Path]]:
    """Names and folders. Links are not followed; hidden folders and those whose names are no text are left out."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False) or not speakable(entry.name):
            continue
        folder = Path(entry.path)
        if os.path.isfile(os.path.join(entry.path, "recipe.toml")):
            yield entry.name, folder
        elif depth > 1:
            yield from ((f"{entry.name}/{name}", path) for name, path in find_runs(folder, depth - 1))


def read_now(folder: Path) -> dict[str, Any]:
    """What a run under way says of itself; nothing if its process is gone."""
    try:
        said = json.loads((folder / "now.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) and alive(said) else {}


def read_row(name: str, folder: Path) -> Row:
    run, now = read_settings(folder), read_now(folder)
    if not run.complete:
        _read_end(run)
    state = "complete" if run.complete else "running" if now else "interrupted"
    asked = run.recipe.get("round")
    rounds = int(finite((asked if isinstance(asked, dict) else {}).get("rounds")) or run.rounds)
    spent = run.summary.get("wall_seconds")
    return Row(
        name=name,
        state=state,
        **{label: run.label(label) for label in ("system", "method", "task", "engine", "seed")},
        round=run.rounds,
        rounds=max(rounds, run.rounds),
        metric=run.headline,
        value=run.metrics.get(run.headline),
        seconds=finite(spent),
        left=time_left(run, rounds) if state == "running" else None,
        changed=_changed(folder),
    )


def stamps(folder: Path, names: Sequence[str] = FILES) -> Stamp:
    """By which to know that files have changed."""
    return tuple(_stat(os.path.join(folder, name)) for name in names)


def time_left(run: Run, rounds: int) -> float | None:
    """By the median of its last rounds."""
    took = [finite(run.train[r].get("seconds")) for r in sorted(run.train)[-PACE:]]
    known = [seconds for seconds in took if seconds is not None]
    return statistics.median(known) * max(0, rounds - run.rounds) if known else None


def _read_end(run: Run) -> None:
    """Its last rounds and its last test."""
    for number, record in enumerate(from_the_end(run.path / "metrics.jsonl")):
        with suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            if record["phase"] == "train" or (record["phase"] == "test" and not run.test):
                add_metrics(run, record)  # the report names lines that cannot be read
        if (len(run.train) >= PACE and run.test) or number >= MOST:
            return


def _stat(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, -1)
    return (found.st_mtime_ns, found.st_size)


def _changed(folder: Path) -> float:
    return max(stamp[0] for stamp in stamps(folder)) / 1e9
