"""Some frames of a video by their numbers, and excerpts: short clips, evenly spaced, as a network is shown them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from fedreel.media.frames import Film, Span, Timeline, select_frames
from fedreel.media.packets import opened, reason, unreadable
from fedreel.media.video import middle_square, rgb

EXCERPTS = 10  # of a video

Which = Callable[[int], np.ndarray]  # the number of frames -> the numbers of those that are wanted
Picture = Callable[[Any, Fraction], np.ndarray]  # a decoded frame and its pixels' width by height -> RGB
Redrawn = Callable[[np.ndarray], np.ndarray]  # RGB -> RGB of another size


@dataclass(frozen=True)
class Excerpts:
    """Clips (N, frames, size, size, 3) of bytes, the video's length, and why its tail is missing."""

    clips: np.ndarray
    seconds: float
    fault: str


def excerpts(path: Path, frames: int, size: int, picture: Redrawn | None = None) -> Excerpts:
    """Clips of `frames` frames in a row."""
    return clips_of(path, lambda n: excerpt_frames(n, frames), size, picture)


def clips_of(path: Path, which: Which, size: int, picture: Redrawn | None = None) -> Excerpts:
    """Clips of frames by their numbers (clips, frames), the square in the middle of each: its side is the frame's
    shorter side, scaled to `size` pixels, as shards have it; or what `picture` makes of a whole frame."""
    scaler = VideoReformatter()

    def square(frame: Any, pixel: Fraction) -> np.ndarray:
        if picture:
            return picture(rgb(frame, None, scaler))
        return middle_square(rgb(frame, size, scaler, pixel))

    pictures, line = chosen(path, which, square)
    places = which(line.n_frames)
    clips = np.stack([pictures[number] for number in places.flat]).reshape(*places.shape, size, size, 3)
    return Excerpts(clips, line.seconds(line.n_frames), line.fault)


def excerpt_frames(n_frames: int, frames: int) -> np.ndarray:
    """Numbers (EXCERPTS, frames): centres evenly from frames / 2 to n_frames - frames / 2. A short video stops at its
    last frame."""
    starts = np.linspace(0, max(n_frames - frames, 0), EXCERPTS).round().astype(np.int64)
    return np.minimum(starts[:, None] + np.arange(frames), n_frames - 1)


def chosen(path: Path, which: Which, picture: Picture) -> tuple[dict[int, np.ndarray], Timeline]:
    """Pictures of some frames by their numbers. What lies between them is jumped over where the file allows it."""
    path = Path(path)
    try:
        line = _scanned(path)
        if line is not None:
            wanted = np.unique(which(line.n_frames))
            found = {n: picture(frame, line.pixel) for n, frame in select_frames(path, line, _spans(wanted))}
            if len(found) == len(wanted):
                return found, line
        return _all_decoded(path, which, picture)
    except (av.FFmpegError, ValueError) as error:  # pixels that nothing can convert
        raise unreadable(path, reason(error)) from error


def _scanned(path: Path) -> Timeline | None:
    """When frames are shown, from the packets alone, without decoding; None where these do not tell for sure."""
    ticks, keys, last = [], [], 0
    with opened(path) as pictures:
        stream, fps = pictures.stream, pictures.fps
        for packet in pictures.packets():
            if packet.size and packet.pts is None:
                return None
            if packet.size and not packet.is_discard:
                ticks.append(packet.pts)
                keys += [packet.pts] if packet.is_keyframe else []
                last = packet.duration or last
        base = stream.time_base or Fraction(1, 90000)
        pixel = stream.codec_context.sample_aspect_ratio or Fraction(1)
        promised = stream.frames
    if pictures.fault:
        return None
    ticks.sort()
    if not keys or len({*ticks}) < len(ticks) or (promised and promised != len(ticks)) or min(keys) > ticks[0]:
        return None
    end = ticks[-1] + (last or max(round(1 / (fps * base)), 1))
    return Timeline(np.array([*ticks, end]), np.searchsorted(ticks, sorted(keys)), base, fps, pixel)


def _all_decoded(path: Path, which: Which, picture: Picture) -> tuple[dict[int, np.ndarray], Timeline]:
    """The sure way: once to count the frames that can be decoded, once to keep those wanted."""
    film = Film(path)
    wanted = {*which(sum(1 for _ in film)).flat}
    line = film.timeline
    return {n: picture(frame, line.pixel) for n, frame in enumerate(Film(path)) if n in wanted}, line


def _spans(numbers: np.ndarray) -> list[Span]:
    """Ascending numbers as first and last of those in a row."""
    bounds = [0, *(np.flatnonzero(np.diff(numbers) > 1) + 1).tolist(), len(numbers)]
    return [(int(numbers[a]), int(numbers[b - 1])) for a, b in pairwise(bounds)]
