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
    just read, `at` is where it ends, and `bad` collects the numbers of lines passed over. A bad last line that does not
    end is not among them: a process was stopped while it wrote, or is writing now, and `torn` says so.

    Who has read a part before begins where that ended, with as many lines behind; with an `end`, lines that begin
    beyond it are left to others, and so is one that does not end."""

    def __init__(self, path: Path, begin: int = 0, lines: int = 0, end: int | None = None) -> None:
        self.path, self._begin, self._lines, self._end = path, begin, lines, end
        self.number, self.at, self.bad, self.torn = lines, begin, list[int](), False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.number, self.at, self.bad, self.torn = self._lines, self._begin, [], False
        with open(self.path, "rb") as file:
            file.seek(self._begin)
            for line in file:
                whole = line.endswith(b"\n")
                if self._end is not None and (self.at >= self._end or not whole):
                    return
                self.number, self.at = self.number + 1, self.at + len(line)
                if not line.strip():
                    continue
                try:
                    record = json.loads(line.decode("utf-8", errors="replace"))
                except (ValueError, RecursionError):
                    record = None
                if isinstance(record, dict):
                    yield record
                elif whole:
                    self.bad.append(self.number)
                else:
                    self.torn = True
