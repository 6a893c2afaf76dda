"""Who says where a shot ends: what changes from one frame to the next, the features, or a network that looks at every
frame."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from av.video.reformatter import VideoReformatter

from fedreel.errors import RecipeError, nearest
from fedreel.machine.device import pick_device
from fedreel.media.video import rgb
from fedreel.models.transnet import HIGH, WIDE, ShotFinder, published_transnet

CUTS, KTS, TRANSNET = "cuts", "kts", "transnet"
WAYS = (CUTS, KTS, TRANSNET)

CELLS = 8  # a frame is looked at as so many cells across and down: what moves changes few of them
LEAST = 0.04  # of the way from black to white that a cut changes the cells by, on average
NEAR, TIMES = 4, 1.75  # and so many times as much as any of so many frames before and after it


class CutFinder(Protocol):
    """Gets a video's decoded frames one after another; then tells its shots."""

    def __call__(self, frame: Any) -> None: ...

    def segments(self) -> np.ndarray:
        """Shots (n, 2), first and last frames."""
        ...


def shot_finder(way: str, device: str) -> CutFinder | None:
    """What watches the frames; nothing where change points of the features are wanted."""
    if way not in WAYS:
        raise RecipeError(f"shots cannot be found by '{way}'", expected=" or ".join(WAYS), hint=nearest(way, WAYS))
    if way == TRANSNET:
        return NetworkCuts(ShotFinder(published_transnet(pick_device(device))))
    return PictureCuts() if way == CUTS else None


def cuts(changes: np.ndarray) -> np.ndarray:
    """The frames at which shots begin, all but the first, where changes[i] is how much frame i differs from the one
    before it. A cut stands out among its neighbours, which motion does not; nor does a flash, which comes and goes. No
    shot is shorter than these neighbours are many."""
    around = np.pad(changes, NEAR, constant_values=np.inf)
    others = [around[NEAR + off : NEAR + off + len(changes)] for off in range(-NEAR, NEAR + 1) if off]
    return np.flatnonzero((changes > LEAST) & (changes > TIMES * np.max(others, axis=0)))


class PictureCuts:
    """Shots by hard cuts: the picture is another one at once."""

    def __init__(self) -> None:
        self.scaler = VideoReformatter()
        self.before: np.ndarray | None = None
        self.changes: list[float] = []

    def __call__(self, frame: Any) -> None:
        cells = rgb(frame, (CELLS, CELLS), self.scaler).astype(np.float32) / 255
        self.changes.append(0.0 if self.before is None else float(np.abs(cells - self.before).mean()))
        self.before = cells

    def segments(self) -> np.ndarray:
        return _tiles(cuts(np.array(self.changes)).tolist(), len(self.changes))


class NetworkCuts:
    """Shots by TransNetV2, which knows slow transitions too."""

    def __init__(self, finder: ShotFinder) -> None:
        self.finder, self.scaler = finder, VideoReformatter()

    def __call__(self, frame: Any) -> None:
        self.finder(rgb(frame, (HIGH, WIDE), self.scaler))

    def segments(self) -> np.ndarray:
        return _tiles(self.finder.starts(), self.finder.count)


def _tiles(starts: Any, n_frames: int) -> np.ndarray:
    begin = np.array([0, *starts])
    return np.stack([begin, np.append(begin[1:], n_frames) - 1], axis=1)
