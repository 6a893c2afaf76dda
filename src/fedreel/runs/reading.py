"""A run's records, read from its files alone: without torch, so that who only looks at runs is quick."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedreel.machine.records import Records, parse_json


def read_summary(run: Path) -> dict[str, Any]:
    return read_json(run / "summary.json")


def read_metrics(run: Path, phase: str | None = None) -> Iterator[dict[str, Any]]:
    """The run's records, or those of one phase."""
    yield from (row for row in Records(run / "metrics.jsonl") if phase is None or row.get("phase") == phase)


def read_json(path: Path) -> dict[str, Any]:
    """What a file of a run holds; nothing where there is none, or where writing it was broken off."""
    try:
        return parse_json(path.read_text())
    except (OSError, ValueError):
        return {}
