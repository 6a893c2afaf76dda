"""Any video as the steps that a model scores: features of each, and when its frames are shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from av.video.reformatter import VideoReformatter

from fedreel.data.features import STEPS_AT_ONCE, Features, Window, checked, size_of
from fedreel.machine.progress import Tell
from fedreel.media.frames import Film, Timeline
from fedreel.media.video import rgb


class VideoSteps(NamedTuple):
    """Features (steps, width) of a video, the frame at which each step starts, and when frames are shown."""

    rows: np.ndarray
    starts: np.ndarray
    line: Timeline

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts, append=self.line.n_frames)

    @property
    def picks(self) -> np.ndarray:
        return self.starts + self.lengths // 2


def look(
    video: Path, features: Features, fps: float, tell: Tell | None, watch: Callable[[Any], None] | None = None
) -> VideoSteps:
    """The one pass over all frames: features at `fps` steps a second, as `video_features` makes them. Steps go by the
    times of frames, so that a second is a second in videos of variable frame rate too. `watch` gets every frame."""
    film, scaler = Film(video, tell), VideoReformatter()
    rows: list[np.ndarray] = []
    window = Window(features)
    windows: list[np.ndarray] = []
    starts, count, end = [0], 1, 0
    for number, frame in enumerate(film):
        length = max(film.fps / fps, 1.0)  # of a step, in frames
        place = math.floor(film.time * film.fps + 0.1)  # stamps in milliseconds may come a little early
        if number and place >= end:
            windows.append(window.shown())
            starts.append(number)
            window = Window(features)
        while place >= end:
            end, count = round(count * length), count + 1
        window.add(rgb(frame, size_of(features), scaler, film.pixel))
        if watch:
            watch(frame)
        if len(windows) == STEPS_AT_ONCE:
            rows.append(checked(features, windows, video))
            windows = []
    rows.append(checked(features, [*windows, window.shown()], video))
    return VideoSteps(np.concatenate(rows), np.array(starts, np.int64), film.timeline)
