"""The moving skeleton as an animated GIF: drawn with smooth edges in 256 colours, no picture library needed."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np

from fedreel.tasks.skeleton.page import HOLD, Figure

PAPER = (251, 250, 248)
COLOURS = ((0, 114, 178), (213, 94, 0))  # of the first and the second body, as on the page
LEVELS = 128  # of each colour between paper and full
BONE, DOT = 2.5, 4.5  # half the width of a line, radius of a joint
SHORTEST = 2  # hundredths of a second: browsers slow a GIF with shorter frames down
FAINT = 0.5  # how much of its colour a bone has


def draw_gif(drawn: Figure) -> bytes:
    """The file. It plays for ever, at the recording's speed."""
    file = io.BytesIO()
    moments = np.round(100 * drawn.times).astype(int)
    kept = [0]
    for number in range(1, len(moments)):
        if moments[number] - moments[kept[-1]] >= SHORTEST:
            kept.append(number)
    with av.open(file, "w", format="gif", options={"final_delay": str(round(100 * HOLD))}) as out:
        stream: Any = out.add_stream("gif", rate=100)
        stream.pix_fmt = "pal8"
        stream.width, stream.height = (round(side) for side in drawn.size)
        palette = _palette()
        for number in kept:
            pixels = _picture(drawn, number, stream.width, stream.height)
            frame = av.VideoFrame.from_ndarray((pixels, palette), format="pal8")  # type: ignore[arg-type]
            frame.pts, frame.time_base = int(moments[number]), Fraction(1, 100)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def _palette() -> np.ndarray:
    """For each body its colour, fading from paper; rows are alpha, red, green, blue."""
    share = np.linspace(0, 1, LEVELS)[:, None]
    fades = [(1 - share) * np.array(PAPER) + share * np.array(colour) for colour in COLOURS]
    return np.hstack([np.full((2 * LEVELS, 1), 255), np.vstack(fades).round()]).astype(np.uint8)


def _picture(drawn: Figure, number: int, width: int, height: int) -> np.ndarray:
    ink = np.zeros((height, width))
    who = np.zeros((height, width), np.uint8)
    for m in np.flatnonzero(drawn.there[number]):
        own, points = np.zeros((height, width)), drawn.places[number, m]
        for a, b in drawn.bones:
            _stroke(own, points[a], points[b], BONE, FAINT)
        for point in points:
            _stroke(own, point, point, DOT, 1.0)
        nearer = own > ink
        who[nearer], ink[nearer] = m % len(COLOURS), own[nearer]
    return (who * LEVELS + (ink * (LEVELS - 1)).round()).astype(np.uint8)


def _stroke(ink: np.ndarray, start: np.ndarray, end: np.ndarray, radius: float, strength: float) -> None:
    """Put a line with round ends into the picture; a pixel on its edge gets the share of it that is covered."""
    low = np.maximum(np.floor(np.minimum(start, end) - radius - 1).astype(int), 0)
    high = np.ceil(np.maximum(start, end) + radius + 2).astype(int)
    part = ink[low[1] : high[1], low[0] : high[0]]
    y, x = np.mgrid[low[1] : low[1] + part.shape[0], low[0] : low[0] + part.shape[1]]
    along, length = end - start, float(((end - start) ** 2).sum())
    share = np.clip(((x - start[0]) * along[0] + (y - start[1]) * along[1]) / length, 0, 1) if length else 0.0
    away = np.hypot(x - start[0] - share * along[0], y - start[1] - share * along[1])
    np.maximum(part, strength * np.clip(radius + 0.5 - away, 0, 1), out=part)
