"""Who says where a shot ends: change points of the features, or a network that looks at every frame."""

from __future__ import annotations

from typing import Any

import numpy as np
from av.video.reformatter import VideoReformatter

from fedreel.errors import RecipeError, nearest
from fedreel.machine.device import pick_device
from fedreel.media.video import rgb
from fedreel.models.transnet import HIGH, WIDE, ShotFinder, published_transnet

KTS, TRANSNET = "kts", "transnet"
WAYS = (KTS, TRANSNET)


class CutFinder:
    """Gets a video's decoded frames one after another; then tells its shots."""

    def __init__(self, finder: ShotFinder) -> None:
        self.finder, self.scaler = finder, VideoReformatter()

    def __call__(self, frame: Any) -> None:
        self.finder(rgb(frame, (HIGH, WIDE), self.scaler))

    def segments(self) -> np.ndarray:
        """Shots (n, 2), first and last frames."""
        starts = np.array([0, *self.finder.starts()])
        return np.stack([starts, np.append(starts[1:], self.finder.count) - 1], axis=1)


def shot_finder(way: str, device: str) -> CutFinder | None:
    """What watches the frames; nothing where change points of the features are wanted."""
    if way not in WAYS:
        raise RecipeError(f"shots cannot be found by '{way}'", expected=" or ".join(WAYS), hint=nearest(way, WAYS))
    return CutFinder(ShotFinder(published_transnet(pick_device(device)))) if way == TRANSNET else None
