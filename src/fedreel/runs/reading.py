"""A run's records, read from its files alone: without torch, so that who only looks at runs is quick."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreel.machine.records import Records, parse_json
from fedreel.machine.tail import from_the_end


@dataclass(frozen=True)
class Progress:
    """How far a run has come: its last round, bytes up and down until its newest checkpoint, and what it has given
    away, where that is counted."""

    round: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    epsilon: float | None = None


def read_summary(run: Path) -> dict[str, Any]:
    return read_json(run / "summary.json")


def read_metrics(run: Path, phase: str | None = None) -> Iterator[dict[str, Any]]:
    """The run's records, or those of one phase."""
    yield from (row for row in Records(run / "metrics.jsonl") if phase is None or row.get("phase") == phase)


def read_progress(run: Path) -> Progress:
    """It costs the same however long the run is: of its records only the last ones are read."""
    rounds, epsilon = list[int](), None
    for record in from_the_end(run / "metrics.jsonl"):
        if record.get("phase") == "train":
            rounds.append(int(record["round"]))
        elif record.get("phase") == "privacy" and epsilon is None:
            epsilon = float(record["epsilon"])
        if len(rounds) == 2:  # what a round gives away is told when it has ended: the last may not have come so far
            break
    up, down = _moved(run / "checkpoint")
    return Progress(max(rounds, default=0), up, down, epsilon)


def _moved(checkpoints: Path) -> tuple[int, int]:
    """Bytes up and down, by the newest checkpoint that can be read."""
    folders = [path for path in checkpoints.glob("*") if path.name.isdecimal() and path.name.isascii()]
    for path in sorted(folders, key=lambda path: int(path.name), reverse=True):
        try:
            totals = read_json(path / "state.json")["state"]["totals"]
            return int(totals["bytes_up"]), int(totals["bytes_down"])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return 0, 0


def read_json(path: Path) -> dict[str, Any]:
    """What a file of a run holds; nothing where there is none, or where writing it was broken off."""
    try:
        return parse_json(path.read_text())
    except (OSError, ValueError):
        return {}
