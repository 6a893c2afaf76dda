"""JSON lines that somebody goes on writing: each look reads only what is new."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
BLOCK, LARGE = 1 << 14, 1 << 22


class Tail:
    """Whole lines that have come since the last look. If the file was `cut` back, begin with another Tail."""

    def __init__(self, path: Path, at: int = 0) -> None:
        self.path, self.at = path, at

    def cut(self) -> bool:
        """Whether the file is shorter than what was read of it."""
        try:
            return self.path.stat().st_size < self.at
        except OSError:
            return self.at > 0

    def new(self) -> Iterator[Record]:
        """Records since the last call; a line that is still being written waits for the next one."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.at)
                rest = b""
                while content := file.read(LARGE):  # a ledger can be larger than memory
                    end = content.rfind(b"\n") + 1
                    if not end:
                        rest += content
                        continue
                    whole, left = rest + content[:end], content[end:]
                    self.at += len(whole)
                    rest = left
                    yield from records(whole)
        except OSError:
            return


def from_the_end(path: Path) -> Iterator[Record]:
    """The records of a file, the last one first. No more is read than is asked for."""
    try:
        with open(path, "rb") as file:
            at, rest, torn = file.seek(0, os.SEEK_END), b"", True
            while at > 0:
                step = min(at, max(BLOCK, len(rest)))
                at -= step
                file.seek(at)
                head, *lines = (file.read(step) + rest).split(b"\n")
                if torn and lines:
                    lines.pop()  # nothing, or a line that is still being written
                    torn = False
                for line in reversed(lines):
                    yield from records(line)
                rest = head
            if not torn:
                yield from records(rest)
    except OSError:
        return


def records(content: bytes) -> Iterator[Record]:
    """The JSON objects among lines; any other line is passed over."""
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record
