"""Anti-aliased sprites drawn with numpy: shapes are signed distances, textures a second colour inside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedreel.playground.motion import Track

Field = np.ndarray
OUTLINE = np.array([24, 22, 34], np.float32)

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (226, 52, 48),
    "orange": (245, 146, 38),
    "yellow": (250, 216, 60),
    "green": (64, 176, 80),
    "blue": (48, 106, 226),
    "purple": (150, 70, 200),
    "pink": (246, 128, 178),
    "cyan": (60, 200, 214),
}


@dataclass(frozen=True)
class Look:
    """What a sprite looks like; nothing in it says what the sprite does."""

    shape: str
    texture: str
    colour: tuple[float, float, float]
    second: tuple[float, float, float]


def paint(frames: np.ndarray, look: Look, track: Track) -> None:
    """Draw one sprite along its track into float frames (T, S, S, 3); what leaves at one side comes in at the other."""
    side = frames.shape[1]
    reach = float(np.max(track.radius * (1.05 + 1.5 * track.apart))) + 2
    window = min(side, 2 * int(np.ceil(reach)) + 1)
    rows, down = _window(track.y, window)
    cols, across = _window(track.x, window)
    radius = track.radius[:, None, None].astype(np.float32)
    cos, sin = (f(track.angle)[:, None, None].astype(np.float32) / radius for f in (np.cos, np.sin))
    across, down = across[:, None, :], down[:, :, None]
    u, v = across * cos + down * sin, down * cos - across * sin
    u, v, gap = _apart(u, v, track.apart[:, None, None].astype(np.float32))
    distance = np.maximum(SHAPES[look.shape](u, v), gap) * radius
    t, i, j = np.nonzero(distance < 0.5)  # colours only where there is sprite: a quarter of the window
    u, v, distance, radius = u[t, i, j], v[t, i, j], distance[t, i, j], radius[t, 0, 0]
    ink = TEXTURES[look.texture](u, v, radius)[:, None]
    light = 1.04 - 0.16 * down[t, i, 0] / radius  # from above, whichever way the sprite is turned
    colour = (np.array(look.colour, np.float32) * (1 - ink) + np.array(look.second, np.float32) * ink) * light[:, None]
    colour += np.clip(distance + 1.7, 0, 1)[:, None] * (OUTLINE - colour)
    where = t, rows[t, i] % side, cols[t, j] % side
    under, cover = frames[where], np.clip(0.5 - distance, 0, 1)[:, None]
    frames[where] = under + cover * (np.clip(colour, 0, 255) - under)


def shade(colour: tuple[float, float, float], by: float) -> tuple[float, float, float]:
    """The colour mixed with white (by > 0) or black (by < 0)."""
    target = 255.0 if by > 0 else 0.0
    r, g, b = (c + abs(by) * (target - c) for c in colour)
    return r, g, b


def _window(centre: np.ndarray, size: int) -> tuple[np.ndarray, Field]:
    pixels = np.floor(centre).astype(np.int64)[:, None] - size // 2 + np.arange(size)
    return pixels, (pixels + 0.5 - centre[:, None]).astype(np.float32)


def _apart(u: Field, v: Field, apart: Field) -> tuple[Field, Field, Field]:
    """Four pieces that fly off diagonally: every pixel is mapped back to the whole sprite, and the gaps lie outside."""
    gap = np.maximum(apart - np.abs(u), apart - np.abs(v)) - 8.0 * (apart == 0)
    back = [np.sign(w) * np.maximum(np.abs(w) - apart, 0) for w in (u, v)]
    return back[0], back[1], gap


def _star(u: Field, v: Field) -> Field:
    turn = np.mod(np.arctan2(u, -v) + np.pi / 5, 2 * np.pi / 5) - np.pi / 5
    far = np.hypot(u, v)
    return (far * np.cos(turn) - 1.05) * 0.42 + np.abs(far * np.sin(turn)) * 0.907


def _heart(u: Field, v: Field) -> Field:
    u, v = np.abs(u), v - 0.08
    return np.minimum((u + np.abs(v) - 0.84) * 0.7071, np.hypot(u - 0.42, v + 0.42) - 0.594)


def _cross(u: Field, v: Field) -> Field:
    u, v = np.abs(u), np.abs(v)
    return np.minimum(np.maximum(u - 0.95, v - 0.34), np.maximum(u - 0.34, v - 0.95))


SHAPES: dict[str, Callable[[Field, Field], Field]] = {
    "circle": lambda u, v: np.hypot(u, v) - 0.88,
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) - 0.78,
    "triangle": lambda u, v: np.maximum(v, 0.866 * np.abs(u) - 0.5 * v) - 0.55,
    "star": _star,
    "cross": _cross,
    "heart": _heart,
    "moon": lambda u, v: np.maximum(np.hypot(u, v) - 0.98, 0.72 - np.hypot(u - 0.5, v)),
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.64) - 0.28,
    "hexagon": lambda u, v: np.maximum(0.866 * np.abs(u) + 0.5 * np.abs(v), np.abs(v)) - 0.8,
}


def _wave(w: Field, period: float) -> Field:
    """A triangle wave around 0 with slope 1, so that it is a distance to the nearest line."""
    return period / 4 - np.abs(np.mod(w / period, 1.0) - 0.5) * period


def _cells(u: Field, v: Field, period: float) -> Field:
    u, v = (np.mod(w / period, 1.0) - 0.5 for w in (u, v))
    return (0.3 - np.hypot(u, v)) * period


TEXTURES: dict[str, Callable[[Field, Field, Field], Field]] = {
    "stripes": lambda u, v, r: np.clip(_wave(u, 0.62) * r + 0.5, 0, 1),
    "dots": lambda u, v, r: np.clip(_cells(u, v, 0.6) * r + 0.5, 0, 1),
    "checker": lambda u, v, r: np.clip(_wave(u, 0.9) * _wave(v, 0.9) * 6 * r + 0.5, 0, 1),
    "rings": lambda u, v, r: np.clip(_wave(np.hypot(u, v), 0.56) * r + 0.5, 0, 1),
    "solid": lambda u, v, r: np.zeros_like(u),
    "half": lambda u, v, r: np.clip(v * r + 0.5, 0, 1),
    "spot": lambda u, v, r: np.clip((0.3 - np.hypot(u - 0.3, v - 0.12)) * r + 0.5, 0, 1),
    "wedge": lambda u, v, r: np.clip(np.minimum(u, v) * r + 0.5, 0, 1),
}
