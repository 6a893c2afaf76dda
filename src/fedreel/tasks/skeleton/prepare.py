"""Recordings in the one form that networks take: same joints, same length, centred, facing the same way."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedreel.data.bounded import read_npz
from fedreel.data.damaged import NPZ_ERRORS
from fedreel.errors import DataError
from fedreel.machine.cache import cache_folder
from fedreel.tasks.skeleton.joints import Joints, mapping, stand_ins
from fedreel.tasks.skeleton.motions import read_set, set_files
from fedreel.tasks.skeleton.recordings import MotionSet, Unusable, present

_VERSION = 2  # of what `prepare` gives; another one makes nothing kept before fit


@dataclass(frozen=True)
class Prepared:
    """A set ready for a network; rows of all arrays belong together."""

    x: np.ndarray  # (N, 3, T, V, M) float32
    labels: np.ndarray  # int64
    classes: tuple[str, ...]
    splits: np.ndarray  # train, test or ''
    names: np.ndarray
    subjects: np.ndarray
    dropped: list[Unusable]
    sensor: tuple[str, ...] = ()  # the joints that the recordings have themselves, before they are brought to others


def prepare(frames: np.ndarray, joints: Joints, length: int = 50, bodies: int = 2, align: bool = True) -> np.ndarray:
    """A recording (T, M, V, 3) as (3, length, V, bodies).

    Frames without the first body are removed. What is missing (NaN, or a joint at the sensor's own place) is filled in:
    over time, or if it is never there, from the nearest joint along the bones. Every body is moved so that its centre
    joint is the origin, time is stretched linearly with its first and last frame kept, and with `align` every frame
    is turned about the vertical axis so that the first body's shoulders, from left to right, are parallel to x. The
    second body turns with the first, and is zero where it is not there.
    """
    if frames.ndim != 4 or frames.shape[2:] != (len(joints.names), 3):
        raise DataError(
            "a recording has another form than expected",
            expected=f"frames x bodies x {len(joints.names)} joints x 3",
            found=str(frames.shape),
        )
    data = np.asarray(frames, np.float64)[:, :bodies]
    there = present(data)
    times = np.flatnonzero(there[:, 0]) if data.size else np.zeros(0, np.int64)
    if not len(times):
        raise DataError("no body in any frame")
    data = np.stack([filled(data[times, m], there[times, m], times, joints) for m in range(data.shape[1])], axis=1)
    data = _resized(data - data[:, :, joints.centre, None], length)
    if align:
        data = _aligned(data, joints)
    out = np.zeros((3, length, len(joints.names), bodies), np.float32)
    out[..., : data.shape[1]] = data.transpose(3, 0, 2, 1)
    return out


def prepare_set(found: MotionSet, joints: Joints, length: int, bodies: int, align: bool) -> Prepared:
    """All recordings of a set, brought to these joints."""
    order = mapping(found.joints, joints)
    done, kept, dropped = [], [], list(found.dropped)
    for motion in found.motions:
        try:
            done.append(prepare(motion.frames[:, :, order], joints, length, bodies, align))
            kept.append(motion)
        except DataError as error:
            dropped.append(Unusable(motion.name, None, error.problem))
    if not done:
        raise DataError("no recording of this set can be used", where=found.name, found=dropped[-1].reason)
    return Prepared(
        np.stack(done),
        np.array([m.label for m in kept], np.int64),
        found.classes,
        np.array([m.split for m in kept]),
        np.array([m.name for m in kept]),
        np.array([m.subject for m in kept]),
        dropped,
        found.joints,
    )


def load_set(path: Path, joints: Joints, length: int, bodies: int, align: bool) -> Prepared:
    """A set from its file or folder; what was prepared of the same files before is in the cache folder."""
    files = set_files(path)
    kept = cache_folder() / "skeletons" / f"{_state(path, files, joints, length, bodies, align)}.npz"
    found = _kept(kept, (3, length, len(joints.names), bodies))
    if found is None:
        try:
            found = prepare_set(read_set(path), joints, length, bodies, align)
        except DataError as error:
            if error.where:
                raise
            raise DataError(
                error.problem, where=str(path), expected=error.expected, found=error.found, hint=error.hint
            ) from error
        _keep(kept, found)
    return found


def filled(body: np.ndarray, there: np.ndarray, times: np.ndarray, joints: Joints) -> np.ndarray:
    """One body (T, V, 3) without gaps in the frames where it is there, and zero in the others."""
    whole = np.zeros_like(body)
    seen, times = body[there], times[there]
    missing = ~np.isfinite(seen) | _at_origin(seen)[..., None]
    if missing.any():
        lost = missing.all(axis=0).any(axis=1)
        if lost.all():
            raise DataError("no joint is ever there with all its coordinates")
        for joint, axis in zip(*np.nonzero(missing.any(axis=0) & ~lost[:, None])):
            gap = missing[:, joint, axis]
            seen[gap, joint, axis] = np.interp(times[gap], times[~gap], seen[~gap, joint, axis])
        seen = seen[:, stand_ins(joints, ~lost)]
    whole[there] = seen
    return whole


def _at_origin(seen: np.ndarray) -> np.ndarray:
    """Joints (T, V) that a sensor has lost and put where it is itself. If the rest of the body is all around that
    place, it is not the sensor's: the recording was centred there before."""
    zero = (seen == 0).all(axis=2)
    if zero.any():
        rest = seen[~zero]
        if not ((np.fmin.reduce(rest) > 0) | (np.fmax.reduce(rest) < 0)).any():
            return np.zeros_like(zero)
    return zero


def _resized(data: np.ndarray, length: int) -> np.ndarray:
    at = np.linspace(0, len(data) - 1, length)
    before = np.minimum(at.astype(np.int64), max(len(data) - 2, 0))
    after = np.minimum(before + 1, len(data) - 1)
    share = (at - before)[:, None, None, None]
    return (1 - share) * data[before] + share * data[after]


def _aligned(data: np.ndarray, joints: Joints) -> np.ndarray:
    left, right = joints.shoulders
    across = data[:, 0, right] - data[:, 0, left]
    width = np.hypot(across[:, 0], across[:, 2])
    flat = width == 0  # seen from above, shoulders in one place point nowhere: such a frame stays as it is
    cos = np.where(flat, 1.0, across[:, 0] / np.where(flat, 1.0, width))[:, None, None]
    sin = np.where(flat, 0.0, across[:, 2] / np.where(flat, 1.0, width))[:, None, None]
    x, y, z = np.moveaxis(data, -1, 0)
    return np.stack([cos * x + sin * z, y, cos * z - sin * x], axis=-1)


def _state(path: Path, files: Sequence[Path], joints: Joints, length: int, bodies: int, align: bool) -> str:
    """A name for these files prepared so; other files, times or settings give another."""
    settings = [_VERSION, str(path.resolve()), asdict(joints), length, bodies, align]
    state = hashlib.sha256(json.dumps(settings).encode())
    for file in files:
        status = file.stat()
        state.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return state.hexdigest()[:32]


def _kept(path: Path, shape: tuple[int, ...]) -> Prepared | None:
    try:
        found = read_npz(path)
        dropped = zip(found["dropped_where"], found["dropped_line"], found["dropped_reason"])
        kept = Prepared(
            found["x"],
            found["labels"],
            tuple(map(str, found["classes"])),
            found["splits"],
            found["names"],
            found["subjects"],
            [Unusable(str(where), int(line) or None, str(reason)) for where, line, reason in dropped],
            tuple(map(str, found["sensor"])),
        )
    except NPZ_ERRORS:
        return None
    return kept if kept.x.shape[1:] == shape and len(kept.x) == len(kept.labels) else None


def _keep(path: Path, found: Prepared) -> None:
    """Under a name of our own first: other processes may be preparing the same, and must never read a part."""
    arrays = {key: value for key, value in vars(found).items() if isinstance(value, np.ndarray)}
    arrays["classes"], arrays["sensor"] = np.array(found.classes), np.array(found.sensor)
    arrays["dropped_where"] = np.array([u.where for u in found.dropped], str)
    arrays["dropped_line"] = np.array([u.line or 0 for u in found.dropped], np.int64)
    arrays["dropped_reason"] = np.array([u.reason for u in found.dropped], str)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
