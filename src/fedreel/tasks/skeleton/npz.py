"""Recordings in one .npz file: the frames of all sequences one after another, and arrays that tell what they are."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.data.bounded import read_npz
from fedreel.data.damaged import NPZ_ERRORS
from fedreel.data.splits import SPLITS
from fedreel.errors import DataError, nearest
from fedreel.tasks.skeleton.recordings import (
    FARTHEST,
    Malformed,
    Motion,
    MotionSet,
    Unusable,
    set_name,
    some,
    with_bodies,
)

log = logging.getLogger(__name__)


def read(path: Path) -> MotionSet:
    """All sequences of a file with the keys `data` (frames x joints x 3, metres), `lengths`, `labels`, `class_names`,
    `subjects`, `names`, `joint_names`, and if need be `data2` (a second person, or zeros), `data3` ...,
    `views` and `split`.

    Which are for testing: those of the highest view, where there are several. Else those that `split` says; rows it
    marks otherwise are left out. Else, or if `split` holds words that nobody uses for a split and so is not what it
    seems to be, those of even subjects. Where subjects are no numbers, nothing is marked. A sequence for testing
    that is byte for byte one for training is left out.
    """
    file = _File(path)
    splits, why_not = _splits(file)
    motions: list[Motion] = []
    dropped: list[Unusable] = []
    for row, name in enumerate(file.names):
        try:
            if row in why_not:
                raise Malformed(why_not[row])
            label = int(file.labels[row])
            if not 0 <= label < len(file.classes):
                raise Malformed(f"label {label} of {len(file.classes)} classes, counted from 0")
            motions.append(Motion(name, label, file.subjects[row], splits[row], file.frames(row)))
        except Malformed as fault:
            dropped.append(fault.at(f"{path.name}#{name}"))
    motions = _without_copies(motions, dropped, path)
    return some(MotionSet(set_name(path), file.joints, _class_names(file), motions, dropped), path)


def read_one(path: Path, name: str = "") -> tuple[np.ndarray, tuple[str, ...]]:
    """One sequence by its name, or the only one, and the names of its joints."""
    file = _File(path)
    if not name and len(file.names) > 1:
        raise DataError(
            "this file holds several sequences",
            where=str(path),
            expected=f"{path.name}#NAME",
            found=", ".join(file.names[:5]) + (", ..." if len(file.names) > 5 else ""),
        )
    if name and name not in file.names:
        raise DataError(
            f"there is no sequence '{name}'",
            where=str(path),
            found=f"{', '.join(file.names[:5])} ..." if len(file.names) > 5 else ", ".join(file.names),
            hint=hint if (hint := nearest(name, file.names)).startswith("did") else "",
        )
    try:
        return file.frames(file.names.index(name) if name else 0), file.joints
    except Malformed as fault:
        raise DataError("this sequence cannot be used", where=f"{path}#{name}", found=fault.reason) from fault


class _File:
    """The arrays of a file, each of the right form and length."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.arrays = read_npz(path)
        except NPZ_ERRORS as error:
            raise DataError("this is not a readable .npz file", where=str(path), found=str(error)) from error
        self.lengths = self._numbers("lengths", None)
        self.ends = np.cumsum(self.lengths)
        if not len(self.lengths) or self.lengths.min() < 0:
            raise self.error("lengths", "0 or more frames of at least one sequence", str(self.lengths[:5].tolist()))
        self.joints = tuple(self._words("joint_names", None))
        if len({*self.joints}) < len(self.joints):
            raise self.error("joint_names", "a name of its own for each joint", ", ".join(self.joints))
        more = takewhile(self.arrays.__contains__, (f"data{n}" for n in count(2)))
        self.data = [self._points(key) for key in ("data", *more)]
        total = len(self.lengths)
        self.labels, self.names = self._numbers("labels", total), self._words("names", total)
        self.classes, self.subjects = self._words("class_names", None), self._words("subjects", total)
        self.views = self._numbers("views", total) if "views" in self.arrays else None
        self.split = self._words("split", total) if "split" in self.arrays else None

    def frames(self, row: int) -> np.ndarray:
        """One sequence (T, people, V, 3)."""
        some = slice(int(self.ends[row] - self.lengths[row]), int(self.ends[row]))
        frames = np.stack([data[some] for data in self.data], axis=1)
        if (np.abs(frames) >= FARTHEST).any():
            raise Malformed("it holds numbers that are no coordinates in metres")
        return with_bodies(frames)

    def error(self, key: str, expected: str, found: str) -> DataError:
        return DataError(
            "a file of skeletons is incomplete or damaged",
            where=f"{self.path}, key {key}",
            expected=expected,
            found=found,
        )

    def _points(self, key: str) -> np.ndarray:
        shape = (int(self.ends[-1]), len(self.joints), 3)
        found = self._array(key)
        if found.shape != shape or found.dtype.kind not in "fiu":
            raise self.error(key, f"numbers of the shape {shape}", f"{found.dtype} of the shape {found.shape}")
        with np.errstate(over="ignore"):
            return found.astype(np.float32, copy=False)

    def _numbers(self, key: str, length: int | None) -> np.ndarray:
        found = self._column(key, length, "whole numbers", lambda a: a.dtype.kind in "iu")
        return found.astype(np.int64)

    def _words(self, key: str, length: int | None) -> list[str]:
        return [str(word) for word in self._column(key, length, "texts or numbers", lambda a: a.dtype.kind in "Uiu")]

    def _column(self, key: str, length: int | None, what: str, fits: Callable[[np.ndarray], Any]) -> np.ndarray:
        found = self._array(key)
        if found.ndim != 1 or len(found) != (length if length is not None else len(found)) or not fits(found):
            expected = what if length is None else f"{length} {what}, one for each sequence"
            raise self.error(key, expected, f"{found.dtype} of the shape {found.shape}")
        return found

    def _array(self, key: str) -> np.ndarray:
        if key not in self.arrays:
            raise self.error(key, "this key", f"only {', '.join(sorted(self.arrays)) or 'nothing'}")
        return self.arrays[key]


def _splits(file: _File) -> tuple[list[str], dict[int, str]]:
    """The side of each row, and the rows to leave out with the reason."""
    if file.views is not None and len({*file.views.tolist()}) > 1:
        return ["test" if view == file.views.max() else "train" for view in file.views], {}
    if file.split is None:
        return _by_subject(file), {}
    given = [SPLITS.get(word.strip().lower(), "") for word in file.split]
    why_not = {row: f"its split is '{file.split[row]}'" for row, side in enumerate(given) if side in ("", "val")}
    strange = sorted({file.split[row] for row, side in enumerate(given) if not side})
    if strange and all(map(_is_number, file.subjects)):
        log.warning("%s: `split` holds '%s'; odd subjects train, even ones test", file.path, "', '".join(strange[:5]))
        return _by_subject(file), why_not
    return given, why_not


def _by_subject(file: _File) -> list[str]:
    if not all(map(_is_number, file.subjects)):
        return [""] * len(file.subjects)
    return ["train" if int(subject) % 2 else "test" for subject in file.subjects]


def _class_names(file: _File) -> tuple[str, ...]:
    """The file's. Where these are bare numbers, sorted as texts perhaps, and the sequences of a label all have names
    that begin with the same aNN, the label is called so."""
    if not all(map(_is_number, file.classes)):
        return tuple(file.classes)
    starts: dict[int, set[str]] = {}
    for name, label in zip(file.names, file.labels):
        start = re.match(r"a\d\d(?!\d)", name)
        starts.setdefault(int(label), set()).add(start[0] if start else "")
    if any(len(found) > 1 or "" in found for found in starts.values()):
        return tuple(file.classes)
    return tuple(next(iter(starts.get(label, {name}))) for label, name in enumerate(file.classes))


def _without_copies(motions: list[Motion], dropped: list[Unusable], path: Path) -> list[Motion]:
    train = {_content(m): m.name for m in motions if m.split == "train"}
    kept = []
    for motion in motions:
        copied = train.get(_content(motion)) if motion.split == "test" else None
        if copied is None:
            kept.append(motion)
        else:
            dropped.append(Unusable(f"{path.name}#{motion.name}", None, f"a copy of {copied}, which is for training"))
    return kept


def _content(motion: Motion) -> bytes:
    return repr(motion.frames.shape).encode() + motion.frames.tobytes()


def _is_number(word: str) -> bool:
    return re.fullmatch(r"\d{1,9}", word, re.ASCII) is not None
