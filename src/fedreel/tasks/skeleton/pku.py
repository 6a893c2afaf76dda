"""PKU-MMD: long recordings of up to two bodies, with a file of labelled stretches for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedreel.errors import DataError
from fedreel.tasks.skeleton.joints import KINECT_V2
from fedreel.tasks.skeleton.recordings import (
    LONGEST,
    Malformed,
    Motion,
    MotionSet,
    Unusable,
    coordinates,
    read_lines,
    set_name,
    some,
    with_bodies,
)

CLASSES = 51  # of both parts, although Part II does not use them all
_V = len(KINECT_V2.names)
_VIDEO = re.compile(r"([A-Za-z0-9]+)-[LMR]")
_SKELETON = re.compile(r"skeleton|^data$", re.IGNORECASE)
_LABEL = re.compile(r"label", re.IGNORECASE)
_SPLIT = re.compile(r"cross-subject(_v2)?\.txt", re.IGNORECASE)


@dataclass(frozen=True)
class Layout:
    """Where the parts of the set are."""

    skeletons: Path
    labels: Path
    splits: tuple[Path, ...]  # cross-subject files; which one is this set's is seen from the names in it


def find(path: Path) -> Layout | None:
    """The set at `path`: the folder of the skeleton files, or the one around it and the folder of the labels."""
    path = path.resolve()
    if not path.is_dir():
        return None
    itself = _holds_videos(path) and not _LABEL.search(path.name)
    around = path.parent if itself else path
    inside = [f for f in _named(path, _SKELETON) if _holds_videos(f) and not _LABEL.search(f.name)]
    skeletons = [path] if itself else inside
    labels = [f for top in (*skeletons[:1], around) for f in _named(top, _LABEL) if _holds_videos(f)]
    if not skeletons or not labels:
        return None
    places = dict.fromkeys(f for top in (path, around) for f in (top, *_folders(top)))
    splits = [p for place in places for p in sorted(place.iterdir()) if _SPLIT.fullmatch(p.name)]
    return Layout(skeletons[0], labels[0], tuple(splits))


def files(layout: Layout) -> list[Path]:
    """All files of the set."""
    return [*_videos(layout.skeletons), *_videos(layout.labels), *layout.splits]


def read(path: Path, layout: Layout) -> MotionSet:
    """Every labelled stretch of every video as a recording of its own; more than LONGEST frames are cut to those in
    the middle. With a cross-subject file, its videos are for training and testing and others are left out; without
    one nothing is marked. Files do not tell subjects: the views of one video count as one."""
    videos = _videos(layout.skeletons)
    sides = _sides(layout, {p.stem for p in videos})
    motions: list[Motion] = []
    dropped: list[Unusable] = []
    for video in videos:
        try:
            if sides and video.stem not in sides:
                raise Malformed("it is not in the cross-subject file")
            labels = layout.labels / video.name
            if not labels.is_file():
                raise Malformed("there is no label file of this name")
            frames = read_frames(video)
        except Malformed as fault:
            dropped.append(fault.at(video.name))
            continue
        _stretches(frames, video, labels, sides.get(video.stem, ""), motions, dropped)
    classes = tuple(f"action {a}" for a in range(1, CLASSES + 1))
    return some(MotionSet(set_name(path), KINECT_V2.names, classes, motions, dropped), path)


def read_frames(path: Path) -> np.ndarray:
    """A whole file (T, 2, 25, 3): one line a frame, x y z of 25 joints of one person and the other."""
    lines = read_lines(path)
    return coordinates(lines, range(1, len(lines) + 1), 6 * _V, 6 * _V).reshape(-1, 2, _V, 3)


def _stretches(
    frames: np.ndarray, video: Path, labels: Path, split: str, motions: list[Motion], dropped: list[Unusable]
) -> None:
    """The stretches of one video, added to `motions` or to `dropped`."""
    where = f"{labels.parent.name}/{labels.name}"
    try:
        lines = read_lines(labels)
    except Malformed as fault:
        dropped.append(fault.at(where))
        return
    for number, line in enumerate(lines, 1):
        try:
            action, start, end = _label(line, len(frames))
            stretch = frames[start - 1 : end]
            before = max(0, len(stretch) - LONGEST) // 2
            bodies = with_bodies(stretch[before : before + LONGEST])
        except Malformed as fault:
            dropped.append(Unusable(where, number, fault.reason))
            continue
        subject = video.stem.partition("-")[0]
        motions.append(Motion(f"{video.stem}#{number}", action - 1, subject, split, bodies.copy()))


def _label(line: str, length: int) -> tuple[int, int, int]:
    """The action and its first and last frame, counted from 1."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != 4:
        raise Malformed(f"{len(words)} values instead of 4")
    wrong = [word for word in words[:3] if not re.fullmatch(r"\d{1,9}", word, re.ASCII)]
    if wrong:
        raise Malformed(f"'{wrong[0][:20]}' is not a whole number")
    action, start, end = map(int, words[:3])
    if not 1 <= action <= CLASSES:
        raise Malformed(f"there is no action {action}")
    if not 1 <= start <= end:
        raise Malformed(f"frames {start} to {end}")
    if end > length:
        raise Malformed(f"frames {start} to {end} of a video of {length}")
    return action, start, end


def _sides(layout: Layout, videos: set[str]) -> dict[str, str]:
    """The side of every video in that cross-subject file which knows most of them; nothing without a file."""
    found = [_read_split(path) for path in layout.splits]
    return max(found, key=lambda sides: len(videos & {*sides}), default={})


def _read_split(path: Path) -> dict[str, str]:
    try:
        lines = read_lines(path)
    except Malformed as fault:
        raise DataError("this cross-subject file cannot be used", where=str(path), found=fault.reason) from fault
    train, test = ([m[0] for m in _VIDEO.finditer(line)] for line in [*lines, "", "", "", ""][1:4:2])
    if not train or not test:
        raise DataError(
            "this cross-subject file cannot be used",
            where=str(path),
            expected="names of videos for training in line 2 and for testing in line 4",
            found=f"{len(train)} and {len(test)} names",
        )
    return {**dict.fromkeys(train, "train"), **dict.fromkeys(test, "test")}


def _videos(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.txt") if _VIDEO.fullmatch(p.stem))


def _holds_videos(folder: Path) -> bool:
    return any(_VIDEO.fullmatch(p.stem) for p in folder.glob("*.txt"))


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _named(folder: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """Folders of such a name inside, each followed by the folders in it."""
    for child in _folders(folder):
        if pattern.search(child.name):
            yield child
            yield from _folders(child)
