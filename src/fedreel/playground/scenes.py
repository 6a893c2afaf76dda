"""Backgrounds: eight painted places, and the camera that films them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedreel.playground.motion import Track

MARGIN = 6  # pixels painted beyond every side, so that a shaking camera never sees the edge


@dataclass(frozen=True)
class Camera:
    """How an owner films: pixels of shake, apparent size, brightness and its flicker, contrast."""

    shake: float
    zoom: float
    brightness: float
    flicker: float
    contrast: float


def scene(name: str, side: int, rng: np.random.Generator) -> np.ndarray:
    """A float picture (S, S, 3) of the place with MARGIN pixels around it; small details differ from call to call."""
    wide = side + 2 * MARGIN
    line = ((np.arange(wide) - MARGIN + 0.5) / side).astype(np.float32)
    picture = _PAINTERS[name](line[None, :], line[:, None], rng)
    return np.clip(picture * rng.uniform(0.93, 1.07, 3) + rng.uniform(-8, 8), 0, 255).astype(np.float32)


def shaken(frames: int, camera: Camera, rng: np.random.Generator) -> np.ndarray:
    """The camera's offset (2, T) in pixels: a damped random walk."""
    offset, steps = np.zeros((2, frames)), rng.normal(0, camera.shake * 0.5, (2, frames))
    for t in range(1, frames):
        offset[:, t] = 0.85 * offset[:, t - 1] + steps[:, t]
    return np.clip(offset, 1 - MARGIN, MARGIN - 1)


def film(picture: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Frames (T, side, side, 3) of the picture seen through a camera at these offsets, interpolated between pixels."""
    side, count = picture.shape[0] - 2 * MARGIN, offset.shape[1]
    if not offset.any():
        return np.repeat(picture[None, MARGIN:-MARGIN, MARGIN:-MARGIN], count, axis=0)
    frames = np.empty((count, side, side, 3), np.float32)
    for t, (dx, dy) in enumerate(offset.T + MARGIN):
        col, row = int(dx), int(dy)
        wx, wy = np.float32(dx - col), np.float32(dy - row)
        crop = picture[row : row + side + 1, col : col + side + 1]
        crop = crop[:-1] + wy * (crop[1:] - crop[:-1])
        frames[t] = crop[:, :-1] + wx * (crop[:, 1:] - crop[:, :-1])
    return frames


def seen(track: Track, camera: Camera, offset: np.ndarray) -> Track:
    """The track as the camera sees it."""
    return Track(track.x - offset[0], track.y - offset[1], track.radius * camera.zoom, track.angle, track.apart)


def develop(frames: np.ndarray, camera: Camera, rng: np.random.Generator) -> np.ndarray:
    """uint8 frames with the camera's brightness, contrast and flicker."""
    light = camera.brightness + camera.flicker * rng.normal(size=(len(frames), 1, 1, 1)).astype(np.float32)
    return np.clip((frames - 128) * camera.contrast + 128 + light + 0.5, 0, 255).astype(np.uint8)


def _mix(low: tuple[int, int, int], high: tuple[int, int, int], share: np.ndarray) -> np.ndarray:
    share = np.clip(share, 0, 1)[..., None]
    return np.array(low, np.float32) * (1 - share) + np.array(high, np.float32) * share


def _ridge(x: np.ndarray, y: np.ndarray, height: float, size: float, waves: float, phase: float) -> np.ndarray:
    """1 below a rolling line, 0 above it, soft over a pixel or so."""
    line = (
        height
        + size * np.sin(2 * np.pi * (waves * x + phase))
        + 0.4 * size * np.sin(2 * np.pi * (2.3 * waves * x - phase))
    )
    return np.clip((y - line) * 50 + 0.5, 0, 1)


def _lay(under: np.ndarray, colour: tuple[int, int, int], where: np.ndarray) -> np.ndarray:
    return under + where[..., None] * (np.array(colour, np.float32) - under)


def _spots(x: np.ndarray, y: np.ndarray, centres: np.ndarray, radius: np.ndarray) -> np.ndarray:
    far = np.hypot(x[None] - centres[:, 0, None, None], y[None] - centres[:, 1, None, None])
    return np.clip((radius[:, None, None] - far) * 60 + 0.5, 0, 1).max(axis=0)


def _meadow(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    a, b, c = rng.random(3)
    picture = _mix((150, 205, 240), (226, 240, 246), y * 1.6 + 0 * x)
    picture = _lay(picture, (150, 196, 130), _ridge(x, y, 0.5 + 0.08 * c, 0.06, 1.1, a))
    return _lay(picture, (112, 168, 92), _ridge(x, y, 0.72 + 0.06 * c, 0.05, 0.8, b))


def _desert(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    a, b, c = rng.random(3)
    picture = _mix((250, 214, 160), (253, 238, 205), y * 1.5 + 0 * x)
    picture = _lay(picture, (253, 246, 214), _spots(x, y, np.array([[a, 0.18]]), np.array([0.09])))
    picture = _lay(picture, (226, 178, 116), _ridge(x, y, 0.52 + 0.08 * c, 0.09, 0.7, a))
    return _lay(picture, (206, 152, 94), _ridge(x, y, 0.74 + 0.06 * c, 0.07, 0.9, b))


def _sea(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    a = rng.random()
    picture = _mix((170, 216, 226), (58, 124, 158), y * 1.1 + 0 * x)
    crest = np.sin(2 * np.pi * (7 * y + 0.35 * np.sin(2 * np.pi * (1.5 * x + a))))
    return _lay(picture, (204, 234, 238), np.clip(crest * 2 - 1.2, 0, 0.5))


def _night(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    picture = _mix((18, 20, 52), (62, 54, 104), y + 0 * x)
    stars = rng.random((34, 2)) * 1.2 - 0.1
    picture = _lay(picture, (226, 224, 202), 0.8 * _spots(x, y, stars, rng.uniform(0.004, 0.014, 34)))
    return _lay(picture, (36, 34, 70), _ridge(x, y, 0.86, 0.03, 1.4, rng.random()))


def _forest(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    a, b = rng.random(2)
    picture = _mix((166, 194, 150), (84, 124, 86), y + 0 * x)
    for phase, colour, count in ((a, (116, 142, 104), 5.5), (b, (82, 98, 70), 3.5)):
        trunk = np.cos(2 * np.pi * (count * x + phase + 0.02 * np.sin(9 * y))) + 0 * y
        picture = _lay(picture, colour, np.clip((trunk - 0.72) * 9, 0, 1))
    return _lay(picture, (70, 96, 60), _ridge(x, y, 0.88, 0.02, 3.0, b))


def _snow(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    picture = _mix((176, 194, 216), (222, 230, 240), y * 1.3 + 0 * x)
    picture = _lay(picture, (244, 247, 250), _ridge(x, y, 0.7, 0.05, 0.9, rng.random()))
    flakes = rng.random((40, 2)) * 1.2 - 0.1
    return _lay(picture, (255, 255, 255), 0.9 * _spots(x, y, flakes, rng.uniform(0.008, 0.022, 40)))


def _city(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    picture = _mix((236, 196, 190), (246, 226, 206), y * 1.4 + 0 * x)
    for colour, low, high in (((176, 156, 176), 0.3, 0.6), ((126, 116, 146), 0.5, 0.85)):
        heights = rng.uniform(low, high, 9)
        house = heights[np.clip(np.floor((x + 0.15) * 7).astype(int), 0, 8)]
        picture = _lay(picture, colour, np.clip((y - house) * 60 + 0.5, 0, 1))
    lit = (
        (np.mod(x * 21, 1) > 0.55)
        & (np.mod(y * 18, 1) > 0.6)
        & (y > house + 0.04)
        & (np.sin(31 * np.floor(x * 21) + 17 * np.floor(y * 18)) > 0.2)
    )
    return _lay(picture, (244, 222, 160), 0.7 * lit)


def _paper(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    a, b = rng.random(2)
    picture = _mix((246, 241, 228), (232, 224, 206), y + 0 * x)
    grid = np.maximum(np.cos(2 * np.pi * (8 * x + a)), np.cos(2 * np.pi * (8 * y + b)))
    return _lay(picture, (176, 196, 214), np.clip((grid - 0.93) * 14, 0, 0.8))


_PAINTERS: dict[str, Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]] = {
    "meadow": _meadow,
    "desert": _desert,
    "sea": _sea,
    "night": _night,
    "forest": _forest,
    "snow": _snow,
    "city": _city,
    "paper": _paper,
}
SCENES = tuple(_PAINTERS)
