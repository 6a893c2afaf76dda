"""Video files in and out: H.264 mp4 written reproducibly, any common video read as RGB uint8 frames."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.errors import DataError

SUFFIXES = frozenset([".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp"])
UNSTATED_FPS = 25.0  # what a stream without a frame rate is taken to have

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


def read(path: Path, size: tuple[int, int] | None = None, max_frames: int | None = None) -> tuple[np.ndarray, float]:
    """RGB uint8 frames (T, H, W, 3) and frames per second; `size` (h, w) rescales while decoding.

    A file of which only the tail is unreadable gives the frames before it and a logged warning;
    `read_lenient` hands the reason to the caller instead.
    """
    video = read_lenient(path, size, max_frames)
    if video.fault:
        log.warning("%s: %s; kept the %d frames before it", path, video.fault, len(video.frames))
    return video.frames, video.fps


def read_lenient(path: Path, size: tuple[int, int] | None = None, max_frames: int | None = None) -> Video:
    """Like `read`, with the fault of an unreadable tail in the result; no frame at all is a DataError."""
    reader = Reader(path, size)
    frames = list(itertools.islice(reader, max_frames))
    if not frames:
        raise unreadable(path, reader.fault or "it holds no frames")
    return Video(np.stack(frames), reader.fps, reader.fault)


def backend() -> str:
    """The package that reads video here: `av` (PyAV) where it can be loaded, otherwise `cv2` (OpenCV).

    OpenCV is only looked for, not loaded: that is left to the processes that decode.
    """
    if find_spec("av"):
        with suppress(ImportError):  # installed, but perhaps without libraries it needs
            import av  # noqa: F401

            return "av"
    if find_spec("cv2"):
        return "cv2"
    raise DataError(
        "no video decoder is installed",
        expected="PyAV, or OpenCV in its place",
        hint="pip install av (or pip install opencv-python-headless)",
    )


class Reader:
    """Iterate over a video's RGB frames, one in memory at a time; `fps` and `fault` fill in on the way.

    PyAV decodes, or OpenCV where there is no PyAV; `fedreel.media.video_cv2` says what OpenCV cannot do.
    """

    def __init__(self, path: Path, size: tuple[int, int] | None = None) -> None:
        self.path, self.size = Path(path), size
        self.fps = UNSTATED_FPS
        self.fault = ""

    def __iter__(self) -> Iterator[np.ndarray]:
        self.fault = ""
        if not self.path.is_file():
            raise DataError("there is no such video file", where=str(self.path))
        if backend() == "av":
            return self._with_av()
        from fedreel.media.video_cv2 import frames

        return frames(self)

    def _with_av(self) -> Iterator[np.ndarray]:
        import av
        from av.video.reformatter import VideoReformatter

        scaler = VideoReformatter()  # shared: a scaler per frame would cost more than the scaling
        try:
            container = av.open(str(self.path))
        except (av.FFmpegError, OSError) as error:
            raise unreadable(self.path, reason(error)) from error
        with container:
            if not container.streams.video:
                raise unreadable(self.path, "the file has no video stream")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise unreadable(self.path, "there is no decoder for its video stream")
            stream.codec_context.thread_count = 1  # shards are built one process per core
            self.fps = float(stream.average_rate or stream.guessed_rate or UNSTATED_FPS)
            size, packets = self.size, 0
            try:
                for packet in container.demux(stream):
                    if packet.is_corrupt:
                        raise av.InvalidDataError(0, "a packet is cut short")
                    packets += packet.size > 0
                    for frame in packet.decode():
                        pixels = rgb(frame, size, scaler)
                        size = pixels.shape[:2]  # a stream may change its size midway; its frames here may not
                        yield pixels
            except (av.FFmpegError, ValueError) as error:
                self.fault = f"the video breaks off after packet {packets}: {reason(error)}"
                # What the decoder still holds stays there: with packets missing, its order may have gaps.
            else:
                # Some containers end quietly where bytes are missing, but the header knows the count.
                if packets < stream.frames:
                    self.fault = f"the header promises {stream.frames} frames, the file holds {packets}"


def unreadable(path: Path, found: str) -> DataError:
    return DataError(
        "this file cannot be read as video",
        where=str(path),
        expected="a video file, such as mp4, mov, mkv, webm or avi, with at least one frame",
        found=found,
    )


def reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def rgb(frame: Any, size: tuple[int, int] | None, scaler: Any) -> np.ndarray:
    """One frame as a viewer sees it: scaled to (h, w), and upright where a phone stored it turned."""
    from av.video.reformatter import Interpolation

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
