"""Small pictures of a video's frames, as JPEG files in memory."""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from fedreel.media.excerpts import Which, chosen
from fedreel.media.frames import Timeline, select_frames
from fedreel.media.video import rgb, shape

WIDE, HIGH = 360, 270  # a picture fits into this


class Thumbnails:
    """Gets frames by their numbers and keeps small JPEG pictures of those that are wanted."""

    def __init__(self, wanted: Collection[int], line: Timeline) -> None:
        self.wanted, self.pixel, self.scaler = frozenset(wanted), line.pixel, VideoReformatter()
        self.pictures: dict[int, bytes] = {}

    def __call__(self, number: int, frame: Any) -> None:
        if number in self.wanted:
            self.pictures[number] = jpeg(rgb(frame, fitted(shape(frame, self.pixel), WIDE, HIGH), self.scaler))


def thumbnails(video: Path, line: Timeline, wanted: Collection[int]) -> dict[int, bytes]:
    """Pictures of these frames, by their numbers; only they and what they need are decoded."""
    keep = Thumbnails(wanted, line)
    for number, frame in select_frames(video, line, [(number, number) for number in sorted(wanted)]):
        keep(number, frame)
    return keep.pictures


def glimpses(video: Path, which: Which) -> list[bytes]:
    """Pictures of frames by their numbers, of a video whose length nobody knows yet."""
    scaler, wanted = VideoReformatter(), list[int]()

    def noted(n_frames: int) -> np.ndarray:
        wanted[:] = [min(max(int(number), 0), n_frames - 1) for number in which(n_frames)]
        return np.array(wanted)

    pictures, _ = chosen(video, noted, lambda frame, pixel: rgb(frame, fitted(shape(frame, pixel), WIDE, HIGH), scaler))
    drawn = {number: jpeg(pixels) for number, pixels in pictures.items()}
    return [drawn[number] for number in wanted]


def fitted(shown: tuple[float, float], wide: int, high: int) -> tuple[int, int]:
    """Height and width, even, of a picture that is shown so high and wide, as large as fits."""
    scale = min(high / shown[0], wide / shown[1])
    tall, broad = (max(round(side * scale / 2) * 2, 2) for side in shown)
    return tall, broad


def jpeg(pixels: np.ndarray) -> bytes:
    """RGB (h, w, 3) with even sides as a JPEG file."""
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuvj420p")
    encoder: Any = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = frame.width, frame.height, "yuvj420p"
    encoder.time_base = Fraction(1, 25)
    encoder.options = {"qmin": "3", "qmax": "5"}
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])
