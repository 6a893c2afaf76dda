"""Annotated videos for summarization: h5 files in the form of the ECCV 2016 sets, checked before anything uses them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedreel import playground
from fedreel.config import DataConfig
from fedreel.data import clip_index
from fedreel.data.bounded import H5, opened_h5
from fedreel.data.damaged import H5_ERRORS
from fedreel.data.features import Annotated, Features, features_at
from fedreel.data.splits import SPLITS
from fedreel.errors import DataError
from fedreel.machine.cache import cache_folder
from fedreel.tasks.summary.metrics import Truth

Array = np.ndarray
How = Literal["auto", "mean", "max"]
Spread = Literal["auto", "hold", "nearest"]

ANNOTATIONS = "annotations.h5"

# TVSum's 50 videos in their usual order, five of each category. No two are of the same length, so that lengths tell
# which video is which in files that hold no names.
TVSUM_CATEGORIES = ("VT", "VU", "GA", "MS", "PK", "PR", "FM", "BK", "BT", "DS")
TVSUM_FRAMES = (
    *(10597, 4688, 14019, 7210, 3327, 9671, 4468, 9870, 7010, 3995, 4700, 13511, 3532, 4853, 4324, 9534, 5846),
    *(9731, 5742, 6241, 19406, 5661, 5631, 4356, 6580, 3312, 10917, 8281, 17527, 4005, 5412, 3802, 13365, 3705),
    *(4463, 7959, 4009, 2941, 4165, 11414, 8073, 5939, 4931, 4304, 2500, 15307, 4740, 3896, 5971, 6912),
)

# SumMe has no official categories. The CFed-VS paper uses these three but prints no list: who is where is our choice.
SUMME_CATEGORIES = {
    "sports": "base_jumping bike_polo jumps paintball playing_on_water_slide scuba valparaiso_downhill paluma_jump "
    "playing_ball",
    "holidays": "bearpark_climbing cockpit_landing eiffel_tower kids_playing_in_leaves notre_dame st_maarten_landing "
    "statue_of_liberty uncut_evening_flight",
    "events": "air_force_one bus_in_rock_tunnel car_railcrossing cooking excavators_river_crossing fire_domino "
    "saving_dolphines car_over_camera",
}


@dataclass(frozen=True)
class SummaryVideo:
    """One video, or a part of one. What is not known of it is ''."""

    name: str
    features: Array  # (steps, width) float32
    target: Array  # (steps,) float32, mean score of the annotators, scaled to 0 ... 1 over the whole video
    truth: Truth
    category: str = ""
    owner: str = ""
    split: str = ""
    community: str = ""
    source: str = ""  # the video this is a part of; its own name if it is whole
    known_as: str = ""  # what its authors call it
    rate: float = 0.0  # steps a second, where the file tells


def find_summary(config: DataConfig) -> Path:
    """The h5 file of the recipe's source: the playground's, a file, or the one in a folder."""
    return _file(playground.place_of(config, "summary", "an h5 file, or a folder with one h5 file"), "data.source")


def find_public(config: DataConfig) -> Path:
    """The h5 file of the server's own videos. Without one it is that of the clients; for those of the playground, three
    videos of another world are made, one of each community and all for testing."""
    if config.public not in ("", "playground"):
        return _file(Path(config.public).expanduser(), "data.public")
    if not config.public and config.source != "playground":
        return find_summary(config)
    world = config.seed + 1000
    few = replace(playground.SMALL, name="public", summary_owners=3, summary_videos=1)
    folder = cache_folder() / f"playground-v{playground.VERSION}-public-{world}"
    return playground.make(folder, world, few, ("summary",)) / "summary" / ANNOTATIONS


def read_summary(
    path: Path,
    features: Callable[[], Features] | None = None,
    *,
    how: How = "auto",
    spread: Spread = "auto",
    standardise: bool = False,
) -> list[SummaryVideo]:
    """All videos of an h5 file, in the order of their names. `features` is called only if the file holds none.

    `how`: F1 is the mean over annotators or that of the one who agrees most; auto is `max` for SumMe's videos, known
    by their names and without scores, and `mean` for all others. `spread`: a step's score holds until the next pick,
    or for the frames nearest to the pick; auto is `nearest` where the first pick is not frame 0, since picks are then
    the middles of steps. `standardise` brings every feature of the file to mean 0 and deviation 1.
    """
    videos = []
    try:
        with opened_h5(path) as file:
            for name in sorted(file, key=_natural):
                group = _Group(path, name, file, how, spread)
                videos.append(group.video())
                file.left = group.group.left
    except H5_ERRORS as error:
        raise DataError("this is not a readable h5 file", where=str(path), found=str(error)) from error
    if not videos:
        raise DataError("this h5 file holds no videos", where=str(path))
    lengths = [v.truth.n_frames for v in videos]
    if not any(v.category for v in videos) and {*lengths} <= {*TVSUM_FRAMES}:
        of = {n: TVSUM_CATEGORIES[i // 5] for i, n in enumerate(TVSUM_FRAMES)}
        videos = [replace(v, category=of[v.truth.n_frames]) for v in videos]
    videos = _with_features(videos, path, features)
    return _standardised(videos) if standardise else videos


class _Group:
    """One video's group in an h5 file, read key by key with errors that say which."""

    def __init__(self, path: Path, name: str, file: H5, how: How, spread: Spread) -> None:
        self.path, self.name, self.how, self.spread = path, name, how, spread
        try:
            self.group = file.inside(name)
        except ValueError as error:
            raise self.error("", "a group for each video", str(error)) from error

    def video(self) -> SummaryVideo:
        truth = self.truth()
        steps = len(truth.picks)
        gtscore = self.numbers("gtscore", (steps,), np.float32)
        features = np.empty((steps, 0), np.float32)
        if "features" in self.group:
            features = self.numbers("features", (steps, None), np.float32)
            if not features.shape[1]:
                raise self.error("features", "at least one number a step", f"shape {features.shape}")
        if "gtsummary" in self.group:
            self.numbers("gtsummary", (steps,), np.float32)
        name = self.text("video_name")
        split = self.text("split").lower()
        if split and split not in SPLITS:
            raise self.error("split", "train, val or test", split)
        return SummaryVideo(
            self.name,
            features,
            (gtscore - gtscore.min()) / (float(np.ptp(gtscore)) or 1.0),
            truth,
            category=self.text("category") or summe_category(name),
            owner=self.text("owner"),
            split=SPLITS.get(split, ""),
            community=self.text("community"),
            source=self.name,
            known_as=name,
            rate=self.rate(truth),
        )

    def rate(self, truth: Truth) -> float:
        """Steps a second, from `fps` (frames a second) or `duration` (seconds); 0 if the file has neither."""
        seconds = 0.0
        if "duration" in self.group:
            seconds = float(self.numbers("duration", (), np.float64))
        elif "fps" in self.group:
            seconds = truth.n_frames / max(float(self.numbers("fps", (), np.float64)), 1e-9)
        return len(truth.picks) / seconds if seconds > 0 else 0.0

    def truth(self) -> Truth:
        n_frames, picks = self.number("n_frames"), self.numbers("picks", (None,), np.int64)
        if "n_steps" in self.group and self.number("n_steps") != len(picks):
            raise self.error("n_steps", f"{len(picks)}, the number of picks", str(self.number("n_steps")))
        shots = self.numbers("change_points", (None, 2), np.int64)
        self._check_tiling(shots, n_frames)
        chosen = self.numbers("user_summary", (None, n_frames), np.float32)
        if not len(chosen) or not ((chosen == 0) | (chosen == 1)).all():
            raise self.error("user_summary", "0 or 1 for every frame, by at least one user", f"shape {chosen.shape}")
        given = None
        if "user_scores" in self.group:
            given = self.numbers("user_scores", (len(chosen), len(picks)), np.float32)
        how, spread = self.how, self.spread
        if how == "auto":
            how = "max" if given is None and summe_category(self.text("video_name")) else "mean"
        if spread == "auto":
            spread = "nearest" if picks[0] > 0 else "hold"
        try:
            return Truth(n_frames, picks, shots, chosen.astype(np.uint8), given, how, spread)
        except DataError as error:
            raise self.error(error.problem.rpartition(": ")[2], error.expected, error.found) from error

    def _check_tiling(self, shots: Array, n_frames: int) -> None:
        expected = f"shots that follow each other without a gap from frame 0 to frame {n_frames - 1}"
        if not len(shots) or shots[0, 0] != 0 or shots[-1, 1] != n_frames - 1 or (shots[:, 0] > shots[:, 1]).any():
            raise self.error("change_points", expected, f"{shots[:1].tolist()} ... {shots[-1:].tolist()}")
        gaps = np.flatnonzero(shots[1:, 0] != shots[:-1, 1] + 1)
        if len(gaps):
            raise self.error("change_points", expected, f"{shots[gaps[0] : gaps[0] + 2].tolist()}")
        if "n_frame_per_seg" in self.group:
            lengths = self.numbers("n_frame_per_seg", (len(shots),), np.int64)
            wrong = np.flatnonzero(lengths != shots[:, 1] - shots[:, 0] + 1)
            if len(wrong):
                found = f"{lengths[wrong[0]]} frames in shot {shots[wrong[0]].tolist()}"
                raise self.error("n_frame_per_seg", "the lengths of the shots in change_points", found)

    def number(self, key: str) -> int:
        value = self.numbers(key, None, np.int64).reshape(-1)
        if value.size != 1 or value[0] < 1:
            raise self.error(key, "one whole number of at least 1", str(value[:4].tolist()))
        return int(value[0])

    def numbers(self, key: str, shape: tuple[int | None, ...] | None, dtype: type) -> Array:
        """An array of finite numbers; None in the shape stands for any length but 0."""
        if key not in self.group:
            raise self.error(key, "this key", f"only {', '.join(sorted(map(str, self.group))) or 'nothing'}")
        try:
            values = self.group.array(key).astype(np.float64)
        except H5_ERRORS as error:
            raise self.error(key, "numbers", str(error)) from error
        if shape is not None:
            fits = len(shape) == values.ndim and all(w in (None, n) for w, n in zip(shape, values.shape))
            if not fits or 0 in values.shape:
                words = " x ".join("any" if n is None else str(n) for n in shape)
                raise self.error(key, f"{words} numbers", f"shape {values.shape}")
        if not np.isfinite(values).all():
            raise self.error(key, "finite numbers", f"{np.count_nonzero(~np.isfinite(values))} that are not")
        if np.issubdtype(dtype, np.integer) and (values != np.floor(values)).any():
            raise self.error(key, "whole numbers", str(values.reshape(-1)[:4].tolist()))
        return values.astype(dtype)

    def text(self, key: str) -> str:
        try:
            value = self.group.text(key)
            value = "" if value is None else value
            if isinstance(value, np.ndarray) and value.size == 1:
                value = value.reshape(-1)[0]
            value = value.decode() if isinstance(value, bytes) else value
        except H5_ERRORS as error:
            raise self.error(key, "text", str(error)) from error
        if not isinstance(value, str):
            raise self.error(key, "text", type(value).__name__)
        return str(value)

    def error(self, key: str, expected: str, found: str) -> DataError:
        return DataError(
            "a file of annotated videos is incomplete or damaged",
            where=f"{self.path}, video {self.name}" + (f", key {key}" if key else ""),
            expected=expected,
            found=found,
        )


def summe_category(video_name: str) -> str:
    """The category of a video of SumMe, '' for any other."""
    word = plain_name(video_name)
    return next((category for category, names in SUMME_CATEGORIES.items() if word in names.split()), "")


def plain_name(video_name: str) -> str:
    """A video's name in the one spelling by which names are compared."""
    return re.sub(r"[\s-]+", "_", video_name.strip().lower())


def _with_features(
    videos: list[SummaryVideo], path: Path, features: Callable[[], Features] | None
) -> list[SummaryVideo]:
    """Features come with the file, for all its videos and of one width, or are computed from the video files."""
    widths = {v.features.shape[1] for v in videos}
    if len(widths) > 1:
        few = next(v.name for v in videos if v.features.shape[1] != videos[0].features.shape[1])
        raise DataError(
            "the videos of a file have features of different widths",
            where=f"{path}, video {few}, key features",
            expected=f"{videos[0].features.shape[1]} numbers a step, as in video {videos[0].name}",
            found=", ".join(map(str, sorted(widths))),
        )
    if widths != {0}:
        return videos
    if features is None:
        raise DataError("a file of annotated videos holds no features", where=f"{path}, key features")
    make = features()
    files = {(Path(p).parent.name, Path(p).stem): path.parent / p for p in clip_index.videos(path.parent)}
    by_name = {name: file for (_, name), file in files.items()}
    wanted = []
    for video in videos:
        file = files.get((video.owner, video.name)) or by_name.get(video.name)
        if file is None:
            raise DataError(
                "a video has neither features nor a file to compute them from",
                where=f"{path}, video {video.name}",
                expected=f"the key features, or a video file called {video.name} below {path.parent}",
            )
        wanted.append(Annotated(file, video.truth.picks, video.truth.n_frames, video.truth.spread == "nearest"))
    return [replace(video, features=rows) for video, rows in zip(videos, features_at(wanted, make))]


def _standardised(videos: list[SummaryVideo]) -> list[SummaryVideo]:
    everything = np.concatenate([v.features for v in videos]).astype(np.float64)
    mean, deviation = everything.mean(axis=0), everything.std(axis=0)
    deviation[deviation == 0] = 1.0
    return [replace(v, features=((v.features - mean) / deviation).astype(np.float32)) for v in videos]


def _file(path: Path, setting: str) -> Path:
    """The h5 file that a setting means: itself, a playground's, or the only one in a folder."""
    if path.is_file():
        return path
    for place in (path / "summary" / ANNOTATIONS, path / ANNOTATIONS):
        if place.is_file():
            return place
    found = sorted(path.glob("*.h5")) if path.is_dir() else []
    if len(found) != 1:
        raise DataError(
            "there are no annotated videos here",
            where=str(path),
            expected="'playground', an h5 file, or a folder with one h5 file",
            found=", ".join(p.name for p in found[:5]) or ("no h5 file" if path.is_dir() else "nothing"),
            hint=f"set {setting}",
        )
    return found[0]


def _natural(name: str) -> list[tuple[int, int | str]]:
    """video_2 before video_10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]
