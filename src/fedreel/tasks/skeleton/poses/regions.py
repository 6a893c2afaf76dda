"""Turned squares of a picture: where a body is, and the picture of it that a network gets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

MARGIN = 1.25  # a body's square is larger than the circle around it, as the networks were trained


@dataclass(frozen=True)
class Region:
    """A square in pixels: its centre, its side, and by how much it is turned clockwise."""

    x: float
    y: float
    side: float
    angle: float = 0.0

    def outward(self, points: np.ndarray) -> np.ndarray:
        """Places (n, 2) inside the square, from 0 to 1 each, as pixels of the picture."""
        return (points - 0.5) * self.side @ turn(self.angle).T + np.array([self.x, self.y])

    def box(self) -> np.ndarray:
        """The upright square of the same centre and side: left, top, right, bottom."""
        half = self.side / 2
        return np.array([self.x - half, self.y - half, self.x + half, self.y + half])


def whole(picture: Image.Image) -> Region:
    """The smallest upright square around a picture."""
    return Region(picture.width / 2, picture.height / 2, max(picture.size))


def around(centre: np.ndarray, top: np.ndarray) -> Region:
    """The square of a body: the middle of its hips, and the point above the head on the circle around it."""
    x, y = top - centre
    angle = math.pi / 2 - math.atan2(-y, x)
    upright = angle - 2 * math.pi * math.floor((angle + math.pi) / (2 * math.pi))
    return Region(float(centre[0]), float(centre[1]), 2 * MARGIN * math.hypot(x, y), upright)


def crop(picture: Image.Image, region: Region, size: int, stretched: bool = False) -> np.ndarray:
    """The square, upright, as RGB (size, size, 3). Beyond the picture's edges it is black or, where it is `stretched`,
    what the edge has."""
    (a, b), (d, e) = turn(region.angle) * (region.side / size)
    left, top = region.outward(np.zeros((1, 2)))[0]
    if stretched:
        picture, x, y = _stretched(picture, region)
        left, top = left - x, top - y
    affine = (a, b, left, d, e, top)
    return np.asarray(picture.transform((size, size), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR))


def turn(angle: float) -> np.ndarray:
    """The matrix that turns (x, y) clockwise, in a picture whose y points down."""
    cos, sin = math.cos(angle), math.sin(angle)
    return np.array([[cos, -sin], [sin, cos]])


def overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of a box (4,) with each of others (n, 4): what they share by what they cover together."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    covered = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared
    return shared / np.maximum(covered, 1e-12)


def _stretched(picture: Image.Image, region: Region) -> tuple[Image.Image, int, int]:
    """A picture around a square that goes beyond its edges, made of their pixels; and where it begins."""
    corners = region.outward(np.array([[0, 0], [0, 1], [1, 0], [1, 1]], float))
    low, high = np.floor(corners.min(axis=0)).astype(int) - 1, np.ceil(corners.max(axis=0)).astype(int) + 1
    if (low >= 0).all() and high[0] <= picture.width and high[1] <= picture.height:
        return picture, 0, 0
    columns = np.clip(np.arange(low[0], high[0]), 0, picture.width - 1)
    rows = np.clip(np.arange(low[1], high[1]), 0, picture.height - 1)
    return Image.fromarray(np.asarray(picture)[rows[:, None], columns]), int(low[0]), int(low[1])
