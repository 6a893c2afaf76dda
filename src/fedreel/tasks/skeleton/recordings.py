"""Recordings of moving bodies, sets of them, and what the readers of all formats check alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedreel.errors import DataError

LONGEST = 300  # frames kept of a recording, where the usual pre-processing of its format keeps no more
FARTHEST = 1e6  # metres; whatever is beyond is no place of a joint


@dataclass(frozen=True)
class Motion:
    """One labelled recording. A body that is not there in a frame is all zero (or NaN) in it."""

    name: str
    label: int
    subject: str
    split: str  # train, test, or '' where the set does not say
    frames: np.ndarray  # (T, M, V, 3) float32, metres


@dataclass(frozen=True)
class Unusable:
    """What was left out, and why: a file, a line of it, or FILE.npz#SEQUENCE."""

    where: str
    line: int | None
    reason: str


@dataclass(frozen=True)
class MotionSet:
    """The recordings of one data set, all with the same joints and one list of classes."""

    name: str
    joints: tuple[str, ...]
    classes: tuple[str, ...]
    motions: list[Motion]
    dropped: list[Unusable]


class Malformed(Exception):
    """One recording cannot be used; its set goes on without it."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line

    def at(self, where: str) -> Unusable:
        return Unusable(where, self.line, self.reason)


def set_name(path: Path) -> str:
    """What a set, and a client that holds it, is called: its file or folder without a suffix."""
    return path.stem if path.suffix in (".npz", ".pkl") else path.resolve().name


def some(found: MotionSet, path: Path) -> MotionSet:
    """The set, if anything in it can be used."""
    if not found.motions:
        first = [f"{u.where}{f', line {u.line}' if u.line else ''}: {u.reason}" for u in found.dropped[:3]]
        raise DataError("no recording of this set can be used", where=str(path), found="; ".join(first) or "none")
    return found


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, without blank ones at its end."""
    try:
        lines = path.read_bytes().decode("ascii").splitlines()
    except OSError as error:
        raise Malformed(f"it cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise Malformed("it is not a text file") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise Malformed("it is empty")
    return lines


def coordinates(lines: Sequence[str], at: Sequence[int], width: int | None, keep: int) -> np.ndarray:
    """The first `keep` of `width` numbers (None: of `keep` or more) in every line, finite and in reach; `at` are the
    numbers of the lines, for the report."""
    rows = [line.split() for line in lines]
    for row, line in zip(rows, at):
        if len(row) != width and (width is not None or len(row) < keep):
            raise Malformed(f"{len(row)} numbers instead of {width or f'{keep} or more'}", line)
    try:
        values = np.array([[float(word) for word in row[: width or keep]] for row in rows])[:, :keep]
    except ValueError:
        line, word = next((n, w) for row, n in zip(rows, at) for w in row[: width or keep] if not _is_number(w))
        raise Malformed(f"'{word[:20]}' is not a number", line) from None
    wrong = ~(np.abs(values) < FARTHEST)  # also true of NaN
    if wrong.any():
        first, column = map(int, np.argwhere(wrong)[0])
        raise Malformed(f"{values[first, column]:g} is no coordinate in metres", at[first])
    return values.astype(np.float32)


def present(frames: np.ndarray) -> np.ndarray:
    """Which bodies (T, M) are there in which frames: those with any number that is neither 0 nor NaN."""
    return (np.isfinite(frames) & (frames != 0)).any(axis=(2, 3))


def with_bodies(frames: np.ndarray) -> np.ndarray:
    """The frames with those bodies only that are there at least once."""
    seen = present(frames).any(axis=0)
    if not seen.any():
        raise Malformed("no body in any frame")
    return frames if seen.all() else frames[:, seen]


def count(text: str, what: str, line: int) -> int:
    """A line that is one whole number and nothing else."""
    word = text.strip()
    if not (word.isascii() and word.isdecimal() and len(word) < 10):
        raise Malformed(f"'{word[:20]}' is not the number of {what}", line)
    return int(word)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
