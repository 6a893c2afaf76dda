"""Skeletons as others have prepared them: pyskl's pickles, and arrays with pickled labels. Pickles are never run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.data.bounded import mapped_npy
from fedreel.data.pickled_arrays import NAMES, PickledArray, PickledType, array_calls
from fedreel.data.restricted_pickle import Refused, evaluate
from fedreel.data.splits import SPLITS
from fedreel.errors import DataError
from fedreel.tasks.skeleton.joints import KINECT_V2
from fedreel.tasks.skeleton.recordings import (
    FARTHEST,
    Malformed,
    Motion,
    MotionSet,
    present,
    set_name,
    some,
    with_bodies,
)

PICKLE, LABELS = ".pkl", "_label.pkl"
MOST = 40_000_000  # instructions of a program; NTU-120 has a quarter of that
_V = len(KINECT_V2.names)
_ARRAYS = ("position", "data", "data_joint", "joint")  # what AimCLR, CrosSCLR, ST-GCN and 2s-AGCN call them
_SUBJECT = re.compile(r"S\d{3}C\d{3}(P\d{3})R\d{3}A\d{3}")
_PREFERRED = "xsub"  # of the protocols in one file


def read_pyskl(path: Path) -> MotionSet:
    """A file of pyskl's with skeletons in space (`ntu60_3danno.pkl` and the like): a dict of `annotations`, each with
    `frame_dir`, `label` and `keypoint` (M, T, 25, 3), and `split`, names by protocol and side. Of several protocols the
    cross-subject one is taken; what it does not name is left out."""
    found = _value(path)
    annotations = found.get("annotations") if isinstance(found, dict) else None
    if not isinstance(annotations, list) or not all(isinstance(a, dict) for a in annotations):
        raise _other(path, "a dict with a list of `annotations`", type(found).__name__)
    sides = _sides(found.get("split"), path)
    motions, dropped = [], []
    for number, annotation in enumerate(annotations):
        name = str(annotation.get("frame_dir") or f"number {number}")
        try:
            if sides and name not in sides:
                raise Malformed("it is on neither side of the split")
            keypoint = annotation.get("keypoint")
            points = keypoint.values if isinstance(keypoint, PickledArray) else None
            if not isinstance(points, np.ndarray) or points.ndim != 4 or points.shape[2:] != (_V, 3):
                raise Malformed(f"no `keypoint` of the shape (bodies, frames, {_V}, 3)")
            frames = _frames(points.transpose(1, 0, 2, 3))
            motions.append(Motion(name, _label(annotation.get("label")), _subject(name), sides.get(name, ""), frames))
        except Malformed as fault:
            dropped.append(fault.at(f"{path.name}#{name}"))
    return some(MotionSet(set_name(path), KINECT_V2.names, _classes(motions), motions, dropped), path)


def read_arrays(folder: Path) -> MotionSet:
    """A folder of SIDE_position.npy (or _data, _data_joint, _joint) of the shape (N, 3, T, 25, M), as AimCLR, CrosSCLR
    and ST-GCN prepare them, each with SIDE_label.pkl: the names and the labels. `val` and `test` are for testing.
    Frames of zeros at the end are padding."""
    motions, dropped = [], []
    for data, labels in find_arrays(folder):
        side = "train" if SPLITS.get(_side(labels)) == "train" else "test"
        names, numbers = _names_and_labels(labels)
        bodies = _mapped(data, len(names))
        for row, (name, number) in enumerate(zip(names, numbers)):
            try:
                frames = _frames(np.asarray(bodies[row]).transpose(1, 3, 2, 0))
                motions.append(Motion(name, _label(number), _subject(name), side, frames))
            except Malformed as fault:
                dropped.append(fault.at(f"{data.name}#{name}"))
    return some(MotionSet(set_name(folder), KINECT_V2.names, _classes(motions), motions, dropped), folder)


def find_arrays(folder: Path) -> list[tuple[Path, Path]]:
    """Files of arrays, each with its labels, if they all lie in this folder or in one folder below it."""
    found = []
    for labels in sorted(folder.rglob(f"*{LABELS}")):
        places = [labels.with_name(f"{_side(labels)}_{name}.npy") for name in _ARRAYS]
        found += [(place, labels) for place in places if place.is_file()][:1]
    return found if len({data.parent for data, _ in found}) == 1 else []


def is_pyskl(path: Path) -> bool:
    return path.suffix == PICKLE and not path.name.endswith(LABELS) and path.is_file()


def _side(labels: Path) -> str:
    return labels.name.removesuffix(LABELS)


def _sides(split: Any, path: Path) -> dict[str, str]:
    """Name -> train or test, by the protocol to use; empty where the file has no split."""
    if split is None:
        return {}
    if not isinstance(split, dict) or not all(isinstance(names, list) for names in split.values()):
        raise _other(path, "lists of names in `split`", type(split).__name__)
    protocols: dict[str, dict[str, Sequence[Any]]] = {}
    for key, names in split.items():
        protocol, _, side = str(key).rpartition("_")
        if side in SPLITS:
            protocols.setdefault(protocol, {})["train" if SPLITS[side] == "train" else "test"] = names
    whole = sorted(p for p, sides in protocols.items() if len(sides) == 2)
    if not whole or (len(whole) > 1 and _PREFERRED not in whole):
        raise _other(
            path, f"`split` with one protocol, or with {_PREFERRED}_train and {_PREFERRED}_val", ", ".join(split)
        )
    chosen = protocols[_PREFERRED if _PREFERRED in whole else whole[0]]
    return {str(name): side for side, names in chosen.items() for name in names}


def _names_and_labels(path: Path) -> tuple[list[str], list[Any]]:
    match _value(path):
        case (list(names), list(labels)) | [list(names), list(labels)] if len(names) == len(labels):
            return [str(name) for name in names], labels
        case (list(names), PickledArray() as array) if len(np.atleast_1d(array.values)) == len(names):  # type: ignore[arg-type]
            return [str(name) for name in names], [int(n) for n in np.atleast_1d(array.values)]  # type: ignore[arg-type]
        case other:
            raise _other(path, "a list of names and one of labels, as long", type(other).__name__)


def _mapped(path: Path, total: int) -> np.ndarray:
    """The array of a file, read as it is used."""
    try:
        found = mapped_npy(path)
    except (OSError, ValueError, EOFError) as error:
        raise DataError("this is not a readable .npy file", where=str(path), found=str(error)) from error
    if found.ndim != 5 or found.shape[0] != total or found.shape[1] != 3 or found.shape[3] != _V:
        raise _other(path, f"numbers of the shape ({total}, 3, frames, {_V}, bodies)", str(found.shape))
    return found


def _frames(frames: np.ndarray) -> np.ndarray:
    """(T, M, V, 3) without padding at the end and without bodies that never appear."""
    if frames.dtype.kind != "f":
        raise Malformed(f"its coordinates are of the type {frames.dtype}")
    frames = frames.astype(np.float32)
    if (np.abs(frames) >= FARTHEST).any():
        raise Malformed("it holds numbers that are no coordinates in metres")
    there = present(frames).any(axis=1)
    if not there.any():
        raise Malformed("no body in any frame")
    return with_bodies(np.ascontiguousarray(frames[: np.flatnonzero(there)[-1] + 1]))


def _label(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 10_000:
        raise Malformed(f"label {str(value)[:20]} is not a class, counted from 0")
    return value


def _subject(name: str) -> str:
    """As NTU's names tell it; otherwise every recording is a subject of its own."""
    found = _SUBJECT.search(name)
    return found[1] if found else name


def _classes(motions: Sequence[Motion]) -> tuple[str, ...]:
    return tuple(f"A{a:03d}" for a in range(1, max((m.label for m in motions), default=-1) + 2))


def _value(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError("this file cannot be read", where=str(path), found=str(error)) from error
    scalars = dict.fromkeys(("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"), _scalar)
    calls: Mapping[str, Any] = {**array_calls(len(content)), **scalars}
    try:
        return evaluate(BytesIO(content), calls, NAMES, most=MOST)
    except Refused as error:
        raise _other(path, "plain values and arrays of numbers", str(error)) from None


def _scalar(kind: Any, content: Any) -> int | float:
    """One of numpy's numbers."""
    if not isinstance(kind, PickledType) or not isinstance(content, bytes) or not kind.fits((1,), content):
        raise Refused("a number whose type and content do not fit")
    value = np.frombuffer(content, kind.dtype)[0].item()
    if not isinstance(value, int | float):
        raise Refused("a number that is none")
    return value


def _other(path: Path, expected: str, found: str) -> DataError:
    return DataError(
        "this is no file of skeletons in a known form",
        where=str(path),
        expected=expected,
        found=found,
        hint="pyskl's 3-D annotations, arrays with labels as AimCLR prepares them, and the sets' own files can be read",
    )
