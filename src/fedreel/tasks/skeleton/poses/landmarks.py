"""What BlazePose's landmark network says of one body: places in the picture, places in metres, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedreel.tasks.skeleton.poses.regions import Region, around, turn

SIDE = 256  # pixels of the network's picture
_ARM = ("shoulder", "elbow", "wrist", "pinky", "index", "thumb")
NAMES = (
    *("nose", "eye_inner_left", "eye_left", "eye_outer_left", "eye_inner_right", "eye_right", "eye_outer_right"),
    *("ear_left", "ear_right", "mouth_left", "mouth_right"),
    *(f"{part}_{side}" for part in _ARM for side in ("left", "right")),
    *(f"{part}_{side}" for part in ("hip", "knee", "ankle", "heel", "toe") for side in ("left", "right")),
)  # fmt: skip
BONES = (
    *((0, 2), (2, 7), (0, 5), (5, 8), (9, 10), (11, 12), (11, 23), (12, 24), (23, 24)),
    *((11, 13), (13, 15), (15, 19), (15, 17), (17, 19), (15, 21), (12, 14), (14, 16), (16, 20), (16, 18), (18, 20)),
    *((16, 22), (23, 25), (25, 27), (27, 29), (27, 31), (29, 31), (24, 26), (26, 28), (28, 30), (28, 32), (30, 32)),
)  # of a drawing
HELPERS = 2  # rows behind the landmarks: the middle of the hips, and the top of the circle around the body
KERNEL, CLEAR = 7, 0.5  # cells of a heatmap around a landmark; it counts where one of them is at least so sure


@dataclass(frozen=True)
class Pose:
    """A body in one frame: landmarks in pixels (33, 2) and in metres (33, 3), x right, y down, z away from the camera,
    the middle of the hips at 0; how visible each is; and how sure it is that there is a body."""

    score: float
    places: np.ndarray
    metres: np.ndarray
    visible: np.ndarray
    helpers: np.ndarray  # (2, 2) pixels

    def region(self) -> Region:
        """Where to look for the body in the next frame."""
        return around(*self.helpers)


def pose(outputs: Sequence[np.ndarray], region: Region) -> Pose:
    """Of the network's five outputs on the picture of a region: landmarks, how sure, the outline, heatmaps, metres."""
    rows, score, _, heatmaps, metres = outputs
    found = rows.astype(np.float64).reshape(-1, 5)
    places = region.outward(refined(found[:, :2] / SIDE, heatmaps.reshape(heatmaps.shape[-3:])))
    count = len(NAMES)
    turned = metres.astype(np.float64).reshape(-1, 3)[:count].copy()
    turned[:, :2] = turned[:, :2] @ turn(region.angle).T
    helpers = places[count : count + HELPERS]
    return Pose(float(score.item()), places[:count], turned, _sigmoid(found[:count, 3]), helpers)


def refined(points: np.ndarray, heatmaps: np.ndarray) -> np.ndarray:
    """Places (n, 2), from 0 to 1, each moved to the mean of its heatmap (h, w, n of logits) in the cells around it."""
    high, wide = heatmaps.shape[:2]
    out, reach = points.copy(), KERNEL // 2
    cells = np.floor(points * [wide, high]).astype(int)
    for i, (column, row) in enumerate(cells):
        if not (0 <= column < wide and 0 <= row < high):
            continue
        top, left = max(row - reach, 0), max(column - reach, 0)
        part = _sigmoid(heatmaps[top : row + reach + 1, left : column + reach + 1, i].astype(np.float64))
        if part.max() >= CLEAR:
            rows, columns = np.mgrid[top : top + part.shape[0], left : left + part.shape[1]]
            out[i] = (part * columns).sum() / wide / part.sum(), (part * rows).sum() / high / part.sum()
    return out


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(values, -100, 100)))
