"""Video files in and out: H.264 mp4 written reproducibly, any common video read as RGB uint8 frames."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.errors import DataError
from fedreel.media.packets import UNSTATED_FPS, opened, unreadable

Size = tuple[int, int] | int | None  # height and width; or the shorter side, the other by the picture's shape; or as is
SQUARE = Fraction(1)
LONGEST = 4  # times the shorter side: what is longer still is squeezed to that

SUFFIXES = frozenset([".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp"])

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Video:
    """Decoded frames (T, H, W, 3), frames per second, and why the tail is missing ('' in a whole file)."""

    frames: np.ndarray
    fps: float
    fault: str = ""

    @property
    def truncated(self) -> bool:
        return bool(self.fault)


def write(path: Path, frames: np.ndarray, fps: int) -> None:
    """Encode (T, H, W, 3) uint8 RGB as H.264 yuv420p mp4; the same frames give the same bytes."""
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8 or 0 in frames.shape:
        raise DataError(
            "these frames cannot be written as video",
            where=str(path),
            expected="uint8 RGB of shape (T, H, W, 3) with T, H, W >= 1",
            found=f"{frames.dtype} of shape {frames.shape}",
        )
    if frames.shape[1] % 2 or frames.shape[2] % 2:
        raise DataError(
            "H.264 with 4:2:0 colour needs even frame sides",
            where=str(path),
            found=f"height {frames.shape[1]}, width {frames.shape[2]}",
            hint="pad or crop the frames by one pixel",
        )
    if fps < 1:
        raise DataError("a video needs at least one frame a second", where=str(path), found=str(fps))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _encode(temporary, frames, fps)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path, size: Size = None, max_frames: int | None = None) -> tuple[np.ndarray, float]:
    """RGB uint8 frames (T, H, W, 3) and frames per second; `size` rescales while decoding.

    A file of which only the tail is unreadable gives the frames before it and a logged warning;
    `read_lenient` hands the reason to the caller instead.
    """
    video = read_lenient(path, size, max_frames)
    if video.fault:
        log.warning("%s: %s; kept the %d frames before it", path, video.fault, len(video.frames))
    return video.frames, video.fps


def read_lenient(path: Path, size: Size = None, max_frames: int | None = None) -> Video:
    """Like `read`, with the fault of an unreadable tail in the result; no frame at all is a DataError."""
    reader = Reader(path, size)
    frames = list(itertools.islice(reader, max_frames))
    if not frames:
        raise unreadable(path, reader.fault or "it holds no frames")
    return Video(np.stack(frames), reader.fps, reader.fault)


class Reader:
    """Iterate over a video's RGB frames, one in memory at a time; `fps` and `fault` fill in on the way."""

    def __init__(self, path: Path, size: Size = None) -> None:
        self.path, self.size = Path(path), size
        self.fps = UNSTATED_FPS
        self.fault = ""

    def __iter__(self) -> Iterator[np.ndarray]:
        import av
        from av.video.reformatter import VideoReformatter

        scaler = VideoReformatter()  # shared: a scaler per frame would cost more than the scaling
        self.fault, size = "", self.size
        with opened(self.path, threads=1) as pictures:  # shards are built one process per core
            self.fps = pictures.fps
            pixel = pictures.stream.codec_context.sample_aspect_ratio or Fraction(1)
            for frame in pictures.frames():
                try:
                    pixels = rgb(frame, size, scaler, pixel)
                except (av.FFmpegError, ValueError) as error:
                    self.fault = pictures.broken(error)
                    return
                size = pixels.shape[:2]  # a stream may change its size midway; its frames here may not
                yield pixels
            self.fault = pictures.fault


def shape(frame: Any, pixel: Fraction) -> tuple[float, float]:
    """Height and width of a frame as a viewer sees it: upright, with the pixels' own proportions."""
    tall, wide = float(frame.height), frame.width * float(pixel)
    return (wide, tall) if round(frame.rotation / 90) % 2 else (tall, wide)


def short_edge(shown: tuple[float, float], side: int) -> tuple[int, int]:
    """Height and width of a picture of this shape whose shorter side has `side` pixels."""
    scale = side / min(shown)
    tall, wide = (min(max(round(length * scale), side), LONGEST * side) for length in shown)
    return tall, wide


def middle_square(frames: np.ndarray) -> np.ndarray:
    """The square in the middle of pictures (..., H, W, 3): a view."""
    top, left = middle_corner(*frames.shape[-3:-1])
    side = min(frames.shape[-3:-1])
    return frames[..., top : top + side, left : left + side, :]


def middle_corner(height: int, width: int) -> tuple[int, int]:
    """Where the square in the middle of a picture begins."""
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2


def rgb(frame: Any, size: Size, scaler: Any, pixel: Fraction = SQUARE) -> np.ndarray:
    """One frame as a viewer sees it: scaled, and upright where a phone stored it turned. `pixel` is the shape of the
    stream's pixels, width by height."""
    from av.video.reformatter import Interpolation

    if isinstance(size, int):
        size = short_edge(shape(frame, pixel), size)
    turns = round(frame.rotation / 90) % 4
    height, width = size or (frame.height, frame.width)
    if size is not None and turns % 2:
        height, width = width, height
    pixels = scaler.reformat(frame, width, height, "rgb24", interpolation=Interpolation.AREA).to_ndarray()
    return np.ascontiguousarray(np.rot90(pixels, turns))  # rows of odd widths come padded


def _encode(path: Path, frames: np.ndarray, fps: int) -> None:
    import av

    # The index goes first (faststart), so that a file cut short still plays up to the cut.
    with av.open(str(path), "w", format="mp4", container_options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(fps))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        # x264 is quicker with sums in whatever order the processor likes, and then one file is not like the next
        stream.options = {"crf": "18", "preset": "veryfast", "threads": "1", "x264-params": "cpu-independent=1"}
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
