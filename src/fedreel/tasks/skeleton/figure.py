"""Moving bodies as a flat drawing: where each joint is in each key frame, seen from the front."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedreel.errors import DataError
from fedreel.tasks.skeleton.joints import Joints
from fedreel.tasks.skeleton.prepare import filled
from fedreel.tasks.skeleton.recordings import present

WIDE, HIGH, EDGE = 620.0, 440.0, 26.0  # the bodies fit into this, with room around them
KEYS, POINTS = 120, 12_000  # at most so many key frames, and places of joints in all of them
FPS = 30.0  # where the recording does not say
HOLD = 0.6  # seconds for which the last frame stands before the motion begins anew


@dataclass(frozen=True)
class Figure:
    """Bodies seen from the front, as a drawing of `size`: x to the right, y down."""

    places: np.ndarray  # (frames, bodies, joints, 2)
    there: np.ndarray  # (frames, bodies), bool
    times: np.ndarray  # of the frames, in seconds from the first
    bones: tuple[tuple[int, int], ...]
    size: tuple[float, float]
    moved: int  # frames of the recording in which somebody is there

    @property
    def seconds(self) -> float:
        """Of one time through, with the pause at its end."""
        return float(self.times[-1]) + HOLD


def figure(frames: np.ndarray, joints: Joints, fps: float | None) -> Figure:
    """A recording (T, M, V, 3) as it was, at key frames: frames without the first body left out, gaps filled as for the
    network. A body that is away stands, to be hidden, where it was last or will be next."""
    data = np.asarray(frames, np.float64)
    seen = present(data)
    times = np.flatnonzero(seen[:, 0])
    whole, there = _bodies(data[times], seen[times], times, joints)
    most = max(2, min(KEYS, POINTS // whole[0, :, :, 0].size))
    keys = np.unique(np.linspace(0, len(times) - 1, most).round().astype(int))
    places, size = _fitted(whole[keys][..., :2])
    return Figure(places, there[keys], (times[keys] - times[0]) / (fps or FPS), joints.bones, size, len(times))


def _bodies(data: np.ndarray, seen: np.ndarray, times: np.ndarray, joints: Joints) -> tuple[np.ndarray, np.ndarray]:
    """All bodies that can be drawn, without gaps, and in which frames they are there."""
    whole, there = [], []
    for m in range(data.shape[1]):
        own = np.flatnonzero(seen[:, m])
        if not len(own):
            continue
        try:
            body = filled(data[:, m], seen[:, m], times, joints)
        except DataError:  # a body that is never there with all its coordinates
            continue
        nearest = np.interp(np.arange(len(times)), own, np.arange(len(own))).round().astype(int)
        whole.append(body[own[nearest]])
        there.append(seen[:, m])
    return np.stack(whole, axis=1), np.stack(there, axis=1)


def _fitted(flat: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Metres as units of the drawing, and how large it is."""
    low, high = flat.min(axis=(0, 1, 2)), flat.max(axis=(0, 1, 2))
    extent = np.maximum(high - low, 1e-9)
    scale = min(WIDE / extent[0], HIGH / extent[1])
    if not np.any(high > low):
        scale = 1.0
    wide, tall = np.maximum(extent * scale, HIGH / 2) + 2 * EDGE
    centred = (flat - (low + high) / 2) * scale * np.array([1.0, -1.0])
    return centred + np.array([wide, tall]) / 2, (float(wide), float(tall))
