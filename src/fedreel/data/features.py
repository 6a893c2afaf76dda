"""Videos as sequences of feature vectors: what a model sees of each step, by hand-made numbers or a network."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreel.data.feature_card import Features, card_of, picture_of
from fedreel.data.kept_arrays import keep, kept
from fedreel.data.shards import spaced
from fedreel.errors import DataError, FedreelError, RecipeError, nearest
from fedreel.machine.ahead import ahead
from fedreel.machine.cache import cache_folder
from fedreel.media.packets import unreadable
from fedreel.media.video import Reader, Size

STEPS_AT_ONCE = 32  # windows given to the features in one call
MOST_BYTES = 200 * 2**20  # of a step's frames that are held whole
Ends = Callable[[float], Iterator[int]]  # the video's frames per second -> where steps end (the frame not included)
Extracted = tuple[np.ndarray, np.ndarray, float]  # rows of features, where their steps ended, frames per second

log = logging.getLogger(__name__)


class Steps(NamedTuple):
    """A video's steps; `picks` are their middle frames, so scores belong to the frames nearest to a pick."""

    features: np.ndarray
    picks: np.ndarray
    n_frames: int
    fps: float


def make_features(name: str) -> Features:
    """Built-in features by name: `plain`, `efficientnet-lite0`, `run:FOLDER`, the backbone of a finished run, or
    `clip:FOLDER`, the image tower of a CLIP."""
    if name.startswith("clip:"):
        from fedreel.data.feature_networks import clip_features

        return clip_features(name[5:])
    if name.startswith("run:"):
        from fedreel.data.feature_networks import run_features  # torch, and what a run's task imports

        return run_features(Path(name[4:]).expanduser())
    if name not in FEATURES:
        raise RecipeError(
            "these features cannot be computed here",
            found=f"'{name}'",
            expected="plain, efficientnet-lite0, run:FOLDER or clip:FOLDER",
            hint=nearest(name, FEATURES) + " Others must come with the data, as `features` in the h5 file",
        )
    return FEATURES[name]()


def size_of(features: Features) -> Size:
    """The size that frames are decoded to for these features."""
    return getattr(features, "decoded", None) if picture_of(features) else features.size


class Window:
    """The frames of one step, decoded to `size_of` the features. Those that are seen are made into pictures when they
    are asked for or, where whole frames would take too much memory, at once."""

    def __init__(self, features: Features) -> None:
        self._frames, self._picture = features.frames, picture_of(features)
        self._held: list[np.ndarray] = []
        self._made = 0  # of the held ones, how many are pictures already
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, frame: np.ndarray) -> None:
        self._held.append(frame)
        self._bytes += frame.nbytes
        if self._picture and self._bytes > MOST_BYTES:
            self._held[self._made :] = [self._picture(frame) for frame in self._held[self._made :]]
            self._made, self._bytes = len(self._held), 0

    def shown(self) -> np.ndarray:
        """(frames, h, w, 3): what the features see of the step."""
        return np.stack([self._seen(int(i)) for i in spaced(len(self._held), self._frames)])

    def _seen(self, number: int) -> np.ndarray:
        frame = self._held[number]
        return frame if self._picture is None or number < self._made else self._picture(frame)


def known_card(name: str, width: int) -> dict[str, Any]:
    """The card of features by their name, with a fingerprint of the weights behind them where these can be had."""
    try:
        return make_features(name).card()
    except FedreelError:  # they came with the data, or a package for them is not installed here
        return {"name": name, "width": width}


def same_features(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two cards say that vectors mean the same: name and width agree, and so does all else that both know."""
    known = [key for key in {*one} & {*other} if one[key] not in ("", None) and other[key] not in ("", None)]
    return {"name", "width"} <= {*known} and all(one[key] == other[key] for key in known)


def video_features(path: Path, features: Features, fps: float = 2.0) -> Steps:
    """Features of any video at `fps` steps a second. Frames are decoded one by one: only one step's, and the windows
    of STEPS_AT_ONCE steps, are in memory. A video of fewer frames a second gets a step for each frame."""
    if not fps > 0:
        raise RecipeError("there must be more than 0 steps a second", found=str(fps))
    (found,) = videos_features([path], features, fps)
    if isinstance(found, DataError):
        raise found
    return found


def videos_features(paths: Sequence[Path], features: Features, fps: float) -> Iterator[Steps | DataError]:
    """`video_features` of each, or why there are none. While one is looked at, the next ones are decoded."""

    def even(rate: float) -> Iterator[int]:
        return _even(max(rate / fps, 1.0))

    for found in _extract_each([(Path(path), even) for path in paths], features):
        if isinstance(found, DataError):
            yield found
            continue
        rows, ends, video_fps = found
        starts = np.concatenate([[0], ends[:-1]])
        yield Steps(rows, starts + (ends - starts) // 2, int(ends[-1]), video_fps)


def features_at(videos: Sequence[Annotated], features: Features) -> list[np.ndarray]:
    """Features of annotated videos, one row for each pick, kept in the cache folder."""
    ends = [video.ends for video in videos]
    folder = cache_folder() / "features"
    files = [folder / f"{_state(video.path, features, of)}.npy" for video, of in zip(videos, ends)]
    found = {n: kept(files[n], (len(ends[n]), features.width)) for n in range(len(videos))}
    missing = [n for n, of in found.items() if of is None]
    for n, made in zip(missing, _extract_each([(videos[n].path, _given(ends[n])) for n in missing], features)):
        if isinstance(made, DataError):
            raise made
        rows, reached, _ = made
        if len(reached) != len(ends[n]) or reached[-1] != ends[n][-1]:
            raise DataError(
                "a video has fewer frames than its annotations",
                where=str(videos[n].path),
                expected=f"{ends[n][-1]} frames in {len(ends[n])} steps",
                found=f"{reached[-1]} frames in {len(reached)} steps",
            )
        keep(files[n], rows)
        found[n] = rows
    return [of for of in found.values() if of is not None]


class Annotated(NamedTuple):
    """A video whose steps are given by picks: the frames around them where these are `centred`, a frame between two
    belonging to the later one, otherwise those from a pick to the next."""

    path: Path
    picks: np.ndarray
    n_frames: int
    centred: bool

    @property
    def ends(self) -> list[int]:
        """Where steps end."""
        inner = (self.picks[:-1] + self.picks[1:] + 1) // 2 if self.centred else self.picks[1:]
        return [*map(int, inner), self.n_frames]


class Plain:
    """64 numbers made by hand, from 8 frames of 32 x 32 pixels: where which colours are, how vivid and warm they are,
    how much moves and how fast, how busy the picture is. Enough to tell what annotators of the playground care for."""

    name, width, frames, size = "plain", 64, 8, (32, 32)

    def __call__(self, windows: np.ndarray) -> np.ndarray:
        rgb = windows.astype(np.float32) / 255
        grey = rgb.mean(axis=-1)
        middle = rgb[:, self.frames // 2]
        hue, saturation, value = _hsv(middle)
        vivid = (saturation > 0.5) & (value > 0.35)
        warm = vivid & ((hue < 0.18) | (hue > 0.97))
        lags = {lag: _typical_change(grey, lag) for lag in (1, 2, 4)}
        change = {lag: _share(d, d > 0.04, d > 0.12) for lag, d in lags.items()}
        cut = np.abs(np.diff(grey, axis=1)).mean(axis=(2, 3)).max(axis=1, keepdims=True)
        tone = np.minimum((hue * 12).astype(np.int64), 11)
        numbers = [
            _cells(middle, 2),
            np.sqrt(_share(*(vivid & (tone == k) for k in range(12)))),
            *(np.sqrt(c) for c in change.values()),
            *((change[lag] + 1e-4) / (change[lag] + change[4] + 2e-4) for lag in (1, 2)),  # speed, however much moves
            np.sqrt(_cells(_edges(grey[:, self.frames // 2]), 3)),
            np.sqrt(_share(value < 0.25, warm, vivid & ~warm)),
            _share(value, saturation),
            np.stack([value.std(axis=(1, 2)), saturation.std(axis=(1, 2))], axis=1),
            np.sqrt(_share(*(vivid & (lags[2] > 0.06) & (tone * 8 // 12 == k) for k in range(8)))),
            np.sqrt(cut),
        ]
        return 4 * np.concatenate(numbers, axis=1, dtype=np.float32) - 1  # about the size networks like

    def card(self) -> dict[str, Any]:
        return card_of(self)


def _efficientnet() -> Features:
    from fedreel.data.feature_networks import efficientnet_lite0

    return efficientnet_lite0()


FEATURES: dict[str, Callable[[], Features]] = {"plain": Plain, "efficientnet-lite0": _efficientnet}


def _even(step: float) -> Iterator[int]:
    return (round(i * step) for i in count(1))


def _given(ends: list[int]) -> Ends:
    return lambda _: iter(ends)


class _Part(NamedTuple):
    """Some steps of a video: what is seen of each, and where they end. Behind the last one, what ended the video."""

    windows: list[np.ndarray]
    reached: list[int]
    fps: float = 0.0
    fault: str = ""


def _extract_each(jobs: Sequence[tuple[Path, Ends]], features: Features) -> Iterator[Extracted | DataError]:
    """What each video gives, or why it gives nothing. Threads decode; what is seen becomes features here, in order."""
    decoding = [partial(_decoded, path, features, make_ends) for path, make_ends in jobs]
    for (path, _), parts in zip(jobs, ahead(decoding)):
        try:
            yield _extract(path, features, parts)
        except DataError as error:
            yield error


def _decoded(path: Path, features: Features, make_ends: Ends) -> Iterator[_Part]:
    reader, part = Reader(path, size_of(features)), _Part([], [])
    for window, end in _steps(reader, make_ends, features):
        part.windows.append(window.shown())
        part.reached.append(end)
        if len(part.windows) == STEPS_AT_ONCE:
            yield part
            part = _Part([], [])
    yield part._replace(fps=reader.fps, fault=reader.fault)


def _extract(path: Path, features: Features, parts: Iterator[_Part]) -> Extracted:
    rows: list[np.ndarray] = []
    reached: list[int] = []
    last = _Part([], [])
    for last in parts:
        rows += [checked(features, last.windows, path)] if last.windows else []
        reached += last.reached
    if not rows:
        raise unreadable(path, last.fault or "it holds no frames")
    if last.fault:
        log.warning("%s: %s; kept the %d frames before it", path, last.fault, reached[-1])
    return np.concatenate(rows), np.array(reached, np.int64), last.fps


def _steps(reader: Reader, make_ends: Ends, features: Features) -> Iterator[tuple[Window, int]]:
    """The frames of each step and the frame it ends before; the last step takes what is left."""
    window = Window(features)
    ends, end = None, 0
    number = 0
    for number, frame in enumerate(reader):
        if ends is None:  # the frame rate is known from the first frame on
            ends = make_ends(reader.fps)
            end = next(ends)
        if number == end:
            yield window, number
            window, end = Window(features), next(ends, -1)
        window.add(frame)
    if len(window):
        yield window, number + 1


def checked(features: Features, windows: list[np.ndarray], path: Path) -> np.ndarray:
    """The features of windows of frames, if they are what their maker promises."""
    found = np.asarray(features(np.stack(windows)), np.float32)
    if found.shape != (len(windows), features.width) or not np.isfinite(found).all():
        raise DataError(
            "the features of a video are not usable",
            where=str(path),
            expected=f"{len(windows)} x {features.width} finite numbers of '{features.name}'",
            found=f"shape {found.shape}, {np.count_nonzero(~np.isfinite(found))} not finite",
        )
    return found


def _state(path: Path, features: Features, ends: list[int]) -> str:
    """A name for these features of this file; another file, time, kind of features or step gives another."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError("there is no such video file", where=str(path)) from error
    what = [str(path.resolve()), status.st_size, status.st_mtime_ns, features.card(), ends]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def _typical_change(grey: np.ndarray, lag: int) -> np.ndarray:
    """The median change of each pixel over `lag` frames: a cut inside the window does not count as motion."""
    change = np.sort(np.abs(grey[:, lag:] - grey[:, :-lag]), axis=1)
    return change[:, change.shape[1] // 2]


def _share(*maps: np.ndarray) -> np.ndarray:
    """The mean of each map (steps, h, w), as columns."""
    return np.stack([m.mean(axis=(1, 2), dtype=np.float32) for m in maps], axis=1)


def _cells(picture: np.ndarray, cells: int) -> np.ndarray:
    """Means over a grid of cells, (steps, cells * cells * channels)."""
    rows, columns = (np.linspace(0, side, cells + 1).astype(int) for side in picture.shape[1:3])
    parts = [picture[:, a:b, c:d] for a, b in pairwise(rows) for c, d in pairwise(columns)]
    return np.stack([p.mean(axis=(1, 2)) for p in parts], axis=1).reshape(len(picture), -1)


def _edges(grey: np.ndarray) -> np.ndarray:
    return np.abs(np.diff(grey, axis=2))[:, :-1] + np.abs(np.diff(grey, axis=1))[:, :, :-1]


def _hsv(rgb: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hue, saturation and value, each 0 to 1."""
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    high, low = rgb.max(axis=-1), rgb.min(axis=-1)
    spread = np.maximum(high - low, 1e-6)
    by_red, by_green, by_blue = (green - blue) / spread, (blue - red) / spread + 2, (red - green) / spread + 4
    hue = np.where(high == red, by_red % 6, np.where(high == green, by_green, by_blue)) / 6
    return hue % 1, (high - low) / np.maximum(high, 1e-6), high
