"""Features of videos by their names: from an .npz or h5 file, a folder of arrays, or made from the videos."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fedreel.data import clip_index
from fedreel.data.bounded import npz_names, opened_h5, read_npy, read_npz
from fedreel.data.damaged import H5_ERRORS, NPZ_ERRORS
from fedreel.data.features import Features, videos_features
from fedreel.errors import DataError
from fedreel.machine.cache import cache_folder
from fedreel.media.video import SUFFIXES

ERRORS = (*NPZ_ERRORS, *H5_ERRORS)  # of damaged files
H5_SUFFIXES = (".h5", ".hdf5")
NPZ_KEYS = ("ids", "offsets", "features")
H5_KEYS = ("features", "c3d_features")

Read = Callable[[str], np.ndarray]
Window = tuple[float, float]  # start and end, in seconds of the video

log = logging.getLogger(__name__)


class MomentFeatures:
    """Rows of features (n, width) over a video's time, read when asked for. `durations` (seconds) and `ids` are those
    of the source; `card` says what must be the same for two of its vectors to mean the same."""

    def __init__(
        self, name: str, read: Read, ids: Iterable[str], durations: Mapping[str, float], where: Path, width: int = 0
    ) -> None:
        self.ids = tuple(ids)
        self.where, self._read, self._known = where, read, frozenset(self.ids)
        self.durations = {k: float(v) for k, v in durations.items() if np.isfinite(v) and v > 0}
        self.width = width or self._first_width()
        self.card: dict[str, Any] = {"name": name, "width": self.width}

    def get(self, video: str) -> np.ndarray:
        """(n, width) float32."""
        key = self.key(video)
        if not key:
            raise DataError("there are no features of this video", where=str(self.where), found=video)
        found = _rows(self._read, key, self.where)
        if found.shape[1] != self.width:
            expected, width = f"{self.width} numbers a row, as in the others", found.shape[1]
            raise DataError(
                "features have another width", where=f"{self.where}, video {key}", expected=expected, found=str(width)
            )
        return found

    def key(self, video: str) -> str:
        """The source's own name for a video: without a suffix such as .avi, or with or without v_; '' if absent."""
        stem = Path(video).stem if Path(video).suffix.lower() in SUFFIXES else video
        names = (video, stem, f"v_{stem}", stem.removeprefix("v_"))
        return next((name for name in names if name in self._known), "")

    def duration(self, video: str) -> float:
        """Seconds, or 0 where the source does not tell."""
        return self.durations.get(self.key(video), 0.0)

    def pool_all(
        self, videos: Iterable[str], length: int, windows: Mapping[str, Sequence[Window]] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Each video in `length` rows, and why the others have none. Where `windows` of the videos are given, each of
        these in `length` rows: (windows, length, width)."""
        wanted, done, faults = list(videos), {}, {}
        for video in wanted:
            try:
                rows = self.get(video)
                if windows is None:
                    done[video] = pool_windows(rows, length)
                else:
                    seconds = windows[video][-1][1]
                    done[video] = np.stack([pool_part(rows, part, seconds, length) for part in windows[video]])
            except DataError as error:
                faults[video] = f"{error.problem}: {error.found}"
        if not done:
            raise DataError(
                "none of the annotated videos has features",
                where=str(self.where),
                expected=", ".join(wanted[:3]) + " ...",
                found=(", ".join(self.ids[:3]) + " ...") if not any(map(self.key, wanted)) else faults[wanted[0]],
                hint="features go by the names of videos in the annotations",
            )
        return done, faults

    def _first_width(self) -> int:
        fault = DataError("there are no features here", where=str(self.where))
        for name in self.ids:
            try:
                return int(_rows(self._read, name, self.where).shape[1])
            except DataError as error:
                fault = error
        raise fault


def pool_windows(x: np.ndarray, length: int) -> np.ndarray:
    """Rows (n, d) as `length` rows: means over equal windows of the time, or the nearest row where there are fewer."""
    starts = np.arange(length) * len(x) // length
    if len(x) <= length:
        return np.asarray(x[starts], np.float32)
    sums = np.add.reduceat(x, starts, axis=0, dtype=np.float64)
    return np.asarray(sums / np.diff(starts, append=len(x))[:, None], np.float32)


def pool_part(rows: np.ndarray, window: Window, seconds: float, length: int) -> np.ndarray:
    """A window of a video of so many seconds as `length` rows."""
    first, last = (round(len(rows) * at / seconds) for at in window)
    first = min(first, len(rows) - 1)
    return pool_windows(rows[first : max(last, first + 1)], length)


def is_features(path: Path) -> bool:
    """Whether a file or folder is one that `open_features` reads."""
    if path.is_dir():
        return any(p.suffix.lower() == ".npy" or _is_one_video(p) for p in path.iterdir() if p.is_file())
    return path.suffix.lower() in H5_SUFFIXES or (path.suffix.lower() == ".npz" and {*NPZ_KEYS} <= npz_keys(path))


def npz_keys(path: Path) -> set[str]:
    """The keys of an .npz file; none of a file that cannot be read."""
    try:
        return {*npz_names(path)}
    except ERRORS:
        return set()


def open_features(path: Path, name: str = "") -> MomentFeatures:
    """An .npz file of all videos (`ids`, `offsets`, `features`, and if known `duration`), an h5 file with a dataset or
    a group for each, or a folder of ID.npy or ID.npz files. `name` says which features they are."""
    name = name or path.stem
    if path.is_dir():
        files = {p.stem: p for p in sorted(path.iterdir()) if p.suffix.lower() == ".npy" or _is_one_video(p)}
        return MomentFeatures(name, lambda key: _array(files[key]), files, {}, path)
    if path.suffix.lower() in H5_SUFFIXES:
        try:
            with opened_h5(path) as file:
                ids = [*file]
        except H5_ERRORS as error:
            raise DataError("this is not a readable h5 file", where=str(path), found=str(error)) from error
        return MomentFeatures(name, partial(_from_h5, path), ids, {}, path)
    return _from_npz(path, name)


def make_moment_features(folder: Path, features: Features, fps: float) -> MomentFeatures:
    """Features of the videos below a folder, `fps` rows a second, kept in the cache folder video by video."""
    rows: dict[str, np.ndarray] = {}
    durations: dict[str, float] = {}
    paths: dict[str, Path] = {}
    for path in (folder / p for p in clip_index.videos(folder)):
        if path.stem in paths:
            raise DataError("two videos have the same name", where=str(folder), found=path.stem)
        paths[path.stem] = path
    files = {name: _file(path, features, fps) for name, path in paths.items()}
    known = {name: _read(file, features.width) for name, file in files.items()}
    missing = [name for name, made in known.items() if made is None]
    for name, steps in zip(missing, videos_features([paths[name] for name in missing], features, fps)):
        if isinstance(steps, DataError):  # its queries are counted as those without features
            log.warning("%s: %s (%s)", paths[name], steps.problem, steps.found)
        else:
            duration = steps.n_frames / steps.fps
            known[name] = steps.features, duration
            _keep(files[name], steps.features, duration)
    for name, made in known.items():
        if made is not None:
            rows[name], durations[name] = made
    found = MomentFeatures(features.name, rows.__getitem__, rows, durations, folder, features.width)
    found.card = {**features.card(), "fps": fps}
    return found


def _file(path: Path, features: Features, fps: float) -> Path:
    """Where the features of a video are kept."""
    status = path.stat()
    state = [str(path.resolve()), status.st_size, status.st_mtime_ns, features.card(), fps]
    name = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / "features" / f"{name}.npz"


def _read(file: Path, width: int) -> tuple[np.ndarray, float] | None:
    """Rows and the video's length, if they are there."""
    try:
        content = read_npz(file)
        rows, duration = content["features"], float(content["duration"])
    except NPZ_ERRORS:
        return None
    sound = rows.ndim == 2 and len(rows) and rows.shape[1] == width and rows.dtype == np.float32
    return (rows, duration) if sound else None


def _keep(file: Path, rows: np.ndarray, duration: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}.tmp")  # others must never read a part
    try:
        with temporary.open("wb") as out:
            np.savez(out, features=rows, duration=duration)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def _from_npz(path: Path, name: str) -> MomentFeatures:
    try:
        file = read_npz(path, {*NPZ_KEYS, "duration"})
        ids, offsets, rows = (file[key] for key in NPZ_KEYS)
        seconds = file["duration"] if "duration" in file else np.zeros(len(ids))
    except NPZ_ERRORS as error:
        raise DataError("this is not a readable .npz file of features", where=str(path), found=str(error)) from error
    shapes = ids.ndim == 1 and ids.dtype.kind == "U" and rows.ndim == 2 and rows.dtype.kind == "f"
    whole = offsets.shape == (len(ids) + 1,) and offsets.dtype.kind in "iu" if shapes else False
    if not whole or offsets[0] < 0 or offsets[-1] > len(rows) or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise DataError(
            "the features of a file do not fit together",
            where=str(path),
            expected="n `ids`, n + 1 rising `offsets`, and as many rows of `features` as the last of them",
            found=f"{ids.dtype} {ids.shape}, {offsets.dtype} {offsets.shape}, {rows.dtype} {rows.shape}",
        )
    names = [str(i) for i in ids]
    begins = {key: (int(a), int(b)) for key, a, b in zip(names, offsets, offsets[1:])}
    durations = dict(zip(names, map(float, seconds))) if np.shape(seconds) == ids.shape else {}
    width = rows.shape[1]
    return MomentFeatures(name, lambda key: rows[slice(*begins[key])], begins, durations, path, width)


def _from_h5(path: Path, key: str) -> np.ndarray:
    with opened_h5(path) as file:
        if isinstance(file.node(key), h5py.Dataset):
            return file.array(key)
        group = file.inside(key)
        return group.array(next(k for k in (*H5_KEYS, *group) if k in group))


def _array(path: Path) -> np.ndarray:
    if path.suffix.lower() == ".npy":
        return read_npy(path)
    names = npz_names(path)
    return next(iter(read_npz(path, {"features" if "features" in names else names[0]}).values()))


def _is_one_video(path: Path) -> bool:
    """An .npz file that is neither of many videos nor of words."""
    keys = npz_keys(path) if path.suffix.lower() == ".npz" else set()
    return len(keys) == 1 or ("features" in keys and not {*NPZ_KEYS} <= keys)


def _rows(read: Read, key: str, where: Path) -> np.ndarray:
    """A video's features, if they are rows of finite numbers. Some tools leave axes of length 1 in between."""
    try:
        found = read(key)
        found = np.asarray(found, np.float32) if found.dtype.kind in "fiu" else np.empty(0, np.float32)
    except (*ERRORS, IndexError, AttributeError, StopIteration) as error:
        raise DataError("features cannot be read", where=f"{where}, video {key}", found=str(error)) from error
    if found.ndim > 2:
        found = np.squeeze(found)
        found = found[None] if found.ndim == 1 else found
    if found.ndim != 2 or not found.size or not np.isfinite(found).all():
        problem = f"shape {found.shape}, {np.count_nonzero(~np.isfinite(found))} not finite"
        raise DataError("features are not usable", where=f"{where}, video {key}", found=problem)
    return found
