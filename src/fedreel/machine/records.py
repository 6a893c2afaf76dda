"""Reading JSON lines that somebody may still be writing: metrics, ledgers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_NODES = 8_000_000  # values of one text


def parse_json(text: str) -> Any:
    """The value of a JSON text that others wrote; ValueError if it is none, or would take far more memory than text."""
    nodes = sum(map(text.count, "[{,:"))
    if nodes > MOST_NODES:
        raise ValueError(f"it holds {nodes} values, and more than {MOST_NODES} are refused")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class Records:
    """The JSON objects of a file, one a line; any other line is passed over. On the way `number` is that of the line
    just read, and `bad` collects the numbers of lines passed over. A bad last line that does not end is not among them:
    a process was stopped while it wrote, or is writing now, and `torn` says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number, self.bad, self.torn = 0, list[int](), False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.number, self.bad, self.torn = 0, [], False
        with open(self.path, encoding="utf-8", errors="replace") as file:
            for self.number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    record = None
                if isinstance(record, dict):
                    yield record
                elif line.endswith("\n"):
                    self.bad.append(self.number)
                else:
                    self.torn = True
