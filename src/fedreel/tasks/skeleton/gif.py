"""The moving skeleton as an animated GIF: smooth edges, two colours that fade into the paper."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageDraw

from fedreel.tasks.skeleton.figure import HOLD, Figure

PAPER = (251, 250, 248)
COLOURS = ((0, 114, 178), (213, 94, 0))  # of the first and the second body, as on the page
LEVELS = 128  # of each colour between paper and full
BONE, DOT = 5.0, 4.5  # width of a line, radius of a joint
SMOOTH = 4  # pictures are drawn so many times larger, and made smaller again
SHORTEST = 2  # hundredths of a second: browsers slow a GIF with shorter frames down
FAINT = 127  # of 255: how much of its colour a bone has


def draw_gif(drawn: Figure) -> bytes:
    """The file. It plays for ever, at the recording's speed."""
    moments = np.round(100 * drawn.times).astype(int).tolist()
    kept = [0]
    for number in range(1, len(moments)):
        if moments[number] - moments[kept[-1]] >= SHORTEST:
            kept.append(number)
    starts = [moments[number] for number in kept]
    hundredths = np.diff(starts, append=starts[-1] + round(100 * HOLD))
    first, *others = (_picture(drawn, number) for number in kept)
    file = io.BytesIO()
    durations = [10 * int(time) for time in hundredths]
    first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
    return file.getvalue()


def _picture(drawn: Figure, number: int) -> Image.Image:
    """One key frame. Where bodies overlap, the stronger colour is seen."""
    width, height = (round(side) for side in drawn.size)
    ink, who = (np.zeros((height, width), np.uint8) for _ in range(2))
    for m in np.flatnonzero(drawn.there[number]):
        own = _ink(drawn, number, int(m), (width, height))
        stronger = own > ink
        who[stronger], ink[stronger] = m % len(COLOURS), own[stronger]
    picture = Image.fromarray(who * np.uint8(LEVELS) + ink // np.uint8(256 // LEVELS))
    picture.putpalette(_palette())
    return picture


def _ink(drawn: Figure, number: int, body: int, size: tuple[int, int]) -> np.ndarray:
    """How much of a body's colour each pixel has, 0 to 255."""
    large = Image.new("L", (SMOOTH * size[0], SMOOTH * size[1]))
    pen = ImageDraw.Draw(large)
    points = [tuple(point) for point in (SMOOTH * (drawn.places[number, body] + 0.5)).tolist()]
    for a, b in drawn.bones:
        pen.line([points[a], points[b]], fill=FAINT, width=round(SMOOTH * BONE))
    for x, y in points:
        radius = SMOOTH * DOT
        pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=255)
    return np.asarray(large.reduce(SMOOTH))


def _palette() -> list[int]:
    """For each body its colour, fading from paper."""
    share = np.linspace(0, 1, LEVELS)[:, None]
    fades = [(1 - share) * np.array(PAPER) + share * np.array(colour) for colour in COLOURS]
    return np.vstack(fades).round().astype(int).flatten().tolist()
