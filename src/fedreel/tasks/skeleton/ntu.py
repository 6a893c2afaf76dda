"""NTU RGB+D 60 and 120: a folder of SsssCcccPpppRrrrAaaa.skeleton files."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np

from fedreel.tasks.skeleton.joints import KINECT_V2
from fedreel.tasks.skeleton.recordings import (
    LONGEST,
    Malformed,
    Motion,
    MotionSet,
    coordinates,
    count,
    read_lines,
    set_name,
    some,
    with_bodies,
)

SUFFIX = ".skeleton"
_NAME = re.compile(r"S(\d{3})C\d{3}P(\d{3})R\d{3}A(\d{3})")
_V = len(KINECT_V2.names)

# Subjects for training in the cross-subject protocols; NTU-120's are these and more.
TRAIN_60 = frozenset((1, 2, 4, 5, 8, 9, *range(13, 20), 25, 27, 28, 31, 34, 35, 38))
TRAIN_120 = TRAIN_60 | {45, 46, 47, 49, 50, *range(52, 60), 70, 74, 78, *range(80, 87), 89}
TRAIN_120 |= {*range(91, 96), 97, 98, 100, 103}


def files(folder: Path) -> list[Path]:
    """The set's files, wherever below the folder."""
    return sorted(folder.rglob(f"*{SUFFIX}"))


def read(folder: Path) -> MotionSet:
    """All recordings below a folder. It is NTU-120 if a name has an action over 60 or a setup over 17, otherwise
    NTU-60; subjects are divided as in the cross-subject protocol.

    The publishers' lists of recordings with missing skeletons (302 and 535 names) are not needed: a file in which no
    body ever appears is left out for that reason.
    """
    found = [(path, _NAME.fullmatch(path.stem)) for path in files(folder)]
    numbers = [tuple(map(int, name.groups())) for _, name in found if name]
    large = any(60 < action <= 120 or setup > 17 for setup, _, action in numbers)
    classes, train = (120, TRAIN_120) if large else (60, TRAIN_60)
    motions, dropped, seen = [], [], set[str]()
    for path, name in found:
        try:
            if name is None:
                raise Malformed("its name is not of the form SsssCcccPpppRrrrAaaa")
            _, subject, action = map(int, name.groups())
            if not 1 <= action <= classes:
                raise Malformed(f"there is no action {action}")
            if path.stem in seen:
                raise Malformed("a second file of this name")
            split = "train" if subject in train else "test"
            motions.append(Motion(path.stem, action - 1, f"P{subject:03d}", split, read_frames(path)))
            seen.add(path.stem)
        except Malformed as fault:
            dropped.append(fault.at(path.relative_to(folder).as_posix()))
    names = tuple(f"A{a:03d}" for a in range(1, classes + 1))
    return some(MotionSet(set_name(folder), KINECT_V2.names, names, motions, dropped), folder)


def read_frames(path: Path) -> np.ndarray:
    """The first LONGEST frames (T, 1 or 2, 25, 3) with the two bodies that move most, the livelier first. A body that
    comes and goes is zero where it is not."""
    lines = read_lines(path)
    total = count(lines[0], "frames", 1)
    seen, rows = _walk(lines, total)
    if not rows:
        raise Malformed("no body in any frame")
    points = coordinates([lines[i] for i in rows], [i + 1 for i in rows], 12, 3).reshape(-1, _V, 3)
    bodies: dict[tuple[str, int], list[int]] = {}
    for row, (frame, body) in enumerate(seen):
        if frame < LONGEST:
            bodies.setdefault(body, []).append(row)
    liveliest = sorted(bodies.values(), key=lambda own: -points[own].var(axis=0, dtype=np.float64).sum())[:2]
    frames = np.zeros((min(total, LONGEST), len(liveliest), _V, 3), np.float32)
    for number, own in enumerate(liveliest):
        frames[[seen[row][0] for row in own], number] = points[own]
    return with_bodies(frames)


def _walk(lines: list[str], total: int) -> tuple[list[tuple[int, tuple[str, int]]], list[int]]:
    """Who is seen when, as (frame, body), and the indices of the lines of their joints. A body is known by its name
    and by how often that name came before in the frame."""
    seen: list[tuple[int, tuple[str, int]]] = []
    rows: list[int] = []
    at = 1

    def line(what: str) -> str:
        nonlocal at
        if at >= len(lines):
            raise Malformed(f"it ends where {what} should be", len(lines))
        at += 1
        return lines[at - 1]

    for frame in range(total):
        names: Counter[str] = Counter()
        for _ in range(count(line(f"frame {frame + 1} of {total}"), "bodies", at)):
            about = line("a body").split()
            if len(about) != 10:
                raise Malformed(f"{len(about)} numbers about a body instead of 10", at)
            if count(line("the number of joints"), "joints", at) != _V:
                raise Malformed(f"{lines[at - 1].strip()} joints instead of {_V}", at)
            if at + _V > len(lines):
                raise Malformed("it ends inside a body", len(lines))
            seen.append((frame, (about[0], names[about[0]])))
            names[about[0]] += 1
            rows.extend(range(at, at + _V))
            at += _V
    if at < len(lines):
        raise Malformed(f"it goes on after its {total} frames", at + 1)
    return seen, rows
