"""A file of JSON lines in which each holds the hash of the one before: what is changed or cut later shows. No torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreel.errors import FedreelError, RunError
from fedreel.machine.files import write_atomic
from fedreel.machine.records import parse_json

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]

_LINK = "prev"  # the key of the hash
_PIECE = 1 << 16  # bytes read at once in search of the last line


@dataclass(frozen=True)
class Verified:
    """A chain that was looked through: how many lines it has, how many before the first with a hash, how it ends, and
    all that is wrong."""

    lines: int
    unchained: int
    last: str
    problems: tuple[str, ...]


class Chain:
    """Appends lines, whole or not at all. Several processes may: each holds a lock while it writes. With a `head`, a
    file beside it, `sync` notes how the chain ends, so that a cut at the end shows too."""

    def __init__(self, path: Path, head: Path | None = None) -> None:
        self.path, self.head = path, head
        self._handle: int | None = None
        self._lock = threading.Lock()
        self._end, self._last = -1, ""  # where the file ended when we wrote last, and its last line's hash

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows to the end; raises, and nothing is written, if there is no room."""
        with self._lock, _Held(self._open()) as handle:
            end, last = self._tail(handle)
            text = b""
            for row in rows:
                line = json.dumps({**row, _LINK: last}).encode()
                text, last = text + line + b"\n", _hash(line)
            try:
                _write_all(handle, text)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, end)
                raise _no_room(self.path, error) from error
            self._end, self._last = end + len(text), last

    def sync(self) -> None:
        """Force all to disk. What comes meanwhile is not held up, unless the end is to be noted."""
        if self._handle is None:
            return
        if self.head is None:
            self._force()
            return
        with self._lock, _Held(self._handle) as handle:
            try:
                os.fsync(handle)
                if self.head is not None:
                    end, last = self._tail(handle)
                    write_atomic(self.head, json.dumps({"bytes": end, "last": last}))
            except OSError as error:
                raise _no_room(self.path, error) from error

    def _force(self) -> None:
        with self._lock:
            if self._handle is None:
                return
            handle = os.dup(self._handle)  # whoever closes the chain does not close this
        try:
            os.fsync(handle)
        except OSError as error:
            raise _no_room(self.path, error) from error
        finally:
            os.close(handle)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _open(self) -> int:
        if self._handle is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._end = -1
        return self._handle

    def _tail(self, handle: int) -> tuple[int, str]:
        """Where the file ends, and its last line's hash. A line that a crash has torn was never let out: it goes."""
        end = os.fstat(handle).st_size
        if end == self._end:
            return end, self._last
        tail, start = b"", end
        while start and tail.count(b"\n") < 2:
            start = max(0, start - _PIECE)
            tail = os.pread(handle, end - start, start)
        whole = tail.rfind(b"\n") + 1
        if whole < len(tail):
            os.ftruncate(handle, end - len(tail) + whole)
        lines = tail[:whole].splitlines()
        return end - len(tail) + whole, _hash(lines[-1]) if lines else ""


class _Held:
    """A file that no other process writes to within this."""

    __slots__ = ("_handle",)

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __enter__(self) -> int:
        if fcntl is not None:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
        return self._handle

    def __exit__(self, *_: object) -> None:
        if fcntl is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)


def verify(path: Path, head: Path | None = None) -> Verified:
    """Look through a chain, and compare its end with what `head` notes."""
    if not path.exists():
        raise FedreelError("there is no ledger here", where=str(path), hint="give a run directory or a ledger.jsonl")
    noted = _noted(head) if head is not None and head.exists() else None
    problems: list[str] = []
    unchained, number, last, read, met = 0, 0, "", 0, noted is None
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                problems.append(f"line {number} is torn: a crash while it was written, or a cut")
                number -= 1
                break
            link = _link(line)
            if link is None and unchained == number - 1:
                unchained = number  # of a version before lines were chained
            elif link is None:
                problems.append(f"line {number} was changed: it holds no hash of the line before")
            elif link != last and number == 1:
                problems.append("lines were cut off at the beginning, or the first was changed")
            elif link != last:
                problems.append(f"line {number - 1} was changed, or lines between it and the next were cut or put in")
            last = _hash(line[:-1])
            read += len(line)
            if noted is not None and read == noted[0]:
                met = True
                if last != noted[1]:
                    problems.append(f"line {number} was changed: it is not what was noted when it was written")
    if not met and noted is not None:
        what = "lines were cut off at the end" if read < noted[0] else "lines were changed"
        problems.append(f"{what}: {noted[0]} bytes were noted, {read} are there")
    return Verified(number, unchained, last, tuple(problems))


def _noted(head: Path) -> tuple[int, str]:
    try:
        told = parse_json(head.read_text())
        return int(told["bytes"]), str(told["last"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FedreelError("the note of the ledger's end cannot be read", where=str(head), found=str(error)) from error


def _link(line: bytes) -> str | None:
    try:
        row = parse_json(line.decode())
    except ValueError:
        return None
    return str(row[_LINK]) if isinstance(row, dict) and _LINK in row else None


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:32]


def _write_all(handle: int, text: bytes) -> None:
    """A disk that is nearly full takes a part of it, and says so only by how much."""
    while text:
        text = text[os.write(handle, text) :]


def _no_room(path: Path, error: OSError) -> RunError:
    return RunError(
        "the ledger cannot be written, so nothing leaves",
        where=str(path),
        found=str(error),
        hint="is the disk full? Make room; what was asked for is asked for again",
    )
