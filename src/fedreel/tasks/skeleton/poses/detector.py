"""What BlazePose's detector says: anchors, boxes and keypoints out of its numbers, and one detection a person."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from fedreel.tasks.skeleton.poses.regions import Region, around, overlap

SIDE = 224  # pixels of the network's picture
LAYERS = ((8, 2), (16, 2), (32, 6))  # pixels between the anchors of a grid, and how many of them share a place
SURE = 0.5  # a detection's score, at least
SAME = 0.3  # boxes that overlap by more are of one person


@dataclass(frozen=True)
class Detection:
    """A person: how sure, the box of the face, and keypoints (4, 2): the middle of the hips, a point above the head on
    the circle around the body, and the same two of the upper body. All in parts of the picture's side."""

    score: float
    box: np.ndarray
    points: np.ndarray

    def region(self, picture: Region) -> Region:
        """The square of the body, of a detection made in this square of a picture."""
        centre, top = picture.outward(self.points[:2])
        return around(centre, top)


@cache
def anchors() -> np.ndarray:
    """The places (2254, 2) that the network's rows are relative to: the middles of the cells of its grids."""
    grids = []
    for stride, count in LAYERS:
        cells = SIDE // stride
        middles = (np.arange(cells) + 0.5) / cells
        x, y = np.meshgrid(middles, middles)
        grids.append(np.repeat(np.stack([x.ravel(), y.ravel()], axis=1), count, axis=0))
    return np.concatenate(grids)


def detections(rows: np.ndarray, logits: np.ndarray) -> list[Detection]:
    """People, the surest first, of the network's rows (2254, 12) and logits (2254,)."""
    scores = 1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -100, 100)))
    sure = scores >= SURE
    return merged(scores[sure], *decoded(rows[sure], anchors()[sure]))


def decoded(rows: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Boxes (n, 4) and keypoints (n, 4, 2): rows hold centre, size and keypoints, in pixels from their anchors."""
    found = rows.astype(np.float64).reshape(-1, 6, 2) / SIDE
    centre, half = found[:, 0] + places, found[:, 1] / 2
    return np.concatenate([centre - half, centre + half], axis=1), found[:, 2:] + places[:, None]


def merged(scores: np.ndarray, boxes: np.ndarray, points: np.ndarray) -> list[Detection]:
    """One detection for all that overlap the surest one, their mean weighted by the scores; and so on with the rest."""
    order = np.argsort(-scores, kind="stable")
    found = []
    while len(order):
        near = overlap(boxes[order[0]], boxes[order]) > SAME
        near[0] = True
        group, weight = order[near], scores[order[near]]
        share = weight / weight.sum()
        place = np.einsum("n,nij->ij", share, points[group])
        found.append(Detection(float(scores[order[0]]), share @ boxes[group], place))
        order = order[~near]
    return found
