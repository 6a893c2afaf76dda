"""UESTC RGB-D: a folder of aN_dN_pNNN_cN_skeleton.txt (or .mat) files, one body each."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedreel.data.mat_file import read_matrices
from fedreel.tasks.skeleton.joints import KINECT_V2
from fedreel.tasks.skeleton.recordings import (
    FARTHEST,
    Malformed,
    Motion,
    MotionSet,
    coordinates,
    read_lines,
    set_name,
    some,
    with_bodies,
)

NAME = re.compile(r"a(\d{1,2})_d(\d)_p(\d{3})_c(\d)_skeleton\.(txt|mat)")
CLASSES = 40
_V = len(KINECT_V2.names)

# Subjects for training in the cross-subject protocol, 51 of 118.
TRAIN = frozenset(
    (
        *(1, 2, 6, 12, 13, 16, 21, 24, 28, 29, 30, 31, 33, 35, 39, 41, 42, 45, 47, 50, 52, 54, 55, 57, 59, 61, 63, 64),
        *(67, 69, 70, 71, 73, 77, 81, 84, 86, 87, 88, 90, 91, 93, 96, 99, 102, 103, 104, 107, 108, 112, 113),
    )
)


def files(folder: Path) -> list[Path]:
    """The set's files, wherever below the folder; a .mat file counts where there is no .txt file of its name."""
    found = sorted(p for p in folder.rglob("a*_skeleton.*") if NAME.fullmatch(p.name))
    texts = {p.stem for p in found if p.suffix == ".txt"}
    return [p for p in found if p.suffix == ".txt" or p.stem not in texts]


def read(folder: Path) -> MotionSet:
    """All recordings below a folder; subjects are divided as in the cross-subject protocol."""
    motions, dropped = [], []
    for path in files(folder):
        name = NAME.fullmatch(path.name)
        assert name is not None
        label, subject = int(name[1]), int(name[3])
        try:
            if label >= CLASSES:
                raise Malformed(f"there is no action {label}")
            split = "train" if subject in TRAIN else "test"
            motions.append(Motion(path.stem, label, f"p{subject:03d}", split, read_frames(path)))
        except Malformed as fault:
            dropped.append(fault.at(path.relative_to(folder).as_posix()))
    classes = tuple(f"a{label}" for label in range(CLASSES))
    return some(MotionSet(set_name(folder), KINECT_V2.names, classes, motions, dropped), folder)


def read_frames(path: Path) -> np.ndarray:
    """All frames (T, 1, 25, 3). In a text file a frame is a line with # and three lines a joint: its place in space,
    in the colour picture and in the depth picture; only the first is kept."""
    if path.suffix == ".mat":
        return with_bodies(_matrix(path).reshape(-1, 1, _V, 3))
    lines = read_lines(path)
    heads = [i for i, line in enumerate(lines) if line.lstrip().startswith("#")]
    if not heads or heads[0] != 0:
        raise Malformed("it does not begin with a line with #", 1)
    for head, following in zip(heads, [*heads[1:], len(lines)]):
        if following - head - 1 != 3 * _V:
            raise Malformed(f"{following - head - 1} lines in a frame instead of {3 * _V}", head + 1)
    rows = [i for i in range(len(lines)) if i % (3 * _V + 1) % 3 == 1]
    points = coordinates([lines[i] for i in rows], [i + 1 for i in rows], None, 3)
    return with_bodies(points.reshape(-1, 1, _V, 3))


def _matrix(path: Path) -> np.ndarray:
    """The only matrix of a .mat file with 75 columns, one row a frame."""
    try:
        found = read_matrices(path).values()
    except (OSError, ValueError) as error:
        raise Malformed(f"it is not a readable .mat file: {error}") from error
    fitting = [m for m in found if m.ndim == 2 and m.shape[1] == 3 * _V and len(m) and m.dtype.kind in "fiu"]
    if len(fitting) != 1:
        raise Malformed(f"{len(fitting)} matrices of {3 * _V} columns instead of one")
    wrong = ~(np.abs(fitting[0].astype(np.float64)) < FARTHEST)
    if wrong.any():
        row = int(np.flatnonzero(wrong.any(axis=1))[0])
        raise Malformed(f"row {row + 1} holds a number that is no coordinate in metres")
    return fitting[0].astype(np.float32)
