"""Video read with OpenCV, for machines without PyAV; `fedreel.media.video.Reader` calls it."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.errors import RunError
from fedreel.media.video import UNSTATED_FPS, Reader, unreadable

ISO_BOXES = frozenset([b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"])  # an mp4 or mov starts with one


def frames(reader: Reader) -> Iterator[np.ndarray]:
    """The RGB frames of `reader.path`, upright, scaled to `reader.size`; fills in the reader's `fps` and `fault`.

    At a video's own size the pixels are mostly those of PyAV. Scaled ones differ, by about one level of 255 in camera
    video and more at sharp changes of colour, because PyAV's scaler gives two neighbouring pixels one colour (with
    a brightness each). So shards are built with one of the two only.

    What OpenCV cannot do, since it shows frames but no packets:
    - say why a tail is missing: it is noticed by the frame count in the header, which only mp4, mov and avi have;
    - tell a missing tail from frames an mp4 hides on purpose (trimmed, not encoded again): it reports both;
    - stop at damage in the middle: where the decoder can mend a picture, it goes on;
    - tell whether the frame before a cut is whole: it is left out.
    """
    cv2 = _opencv()
    capture = _open(cv2, str(reader.path))
    try:
        if not capture.isOpened():
            raise unreadable(reader.path, "OpenCV finds no video in it that it can decode")
        fps = float(capture.get(cv2.CAP_PROP_FPS))
        reader.fps = fps if math.isfinite(fps) and fps > 0 else UNSTATED_FPS
        promised, got = capture.get(cv2.CAP_PROP_FRAME_COUNT), 0
        size, last = reader.size, None
        while True:
            ok, bgr = capture.read()
            if not ok:
                break
            if last is not None:
                yield last
            got += 1
            last = np.ascontiguousarray(_scaled(cv2, bgr, size)[:, :, ::-1])
            size = last.shape[:2]  # a stream may change its size midway; its frames here may not
        stated = _stated_length(reader.path) if got < promised else 0
        cut = stated > reader.path.stat().st_size
        if stated:
            reader.fault = f"the header promises {promised:.0f} frames, the file holds {got - cut} whole ones"
        if last is not None and not cut:  # at a cut the decoder has half a picture, and makes up the rest
            yield last
    finally:
        capture.release()


def _opencv() -> Any:
    try:
        import cv2
    except ImportError as error:  # no DataError: it would count against each video, as if that were broken
        raise RunError(
            "OpenCV is installed, but cannot be loaded",
            found=str(error),
            hint="pip install opencv-python-headless, which needs no graphics libraries, or pip install av",
        ) from error
    if multiprocessing.parent_process() is not None:
        cv2.setNumThreads(1)  # a pool has a process for each core already
    return cv2


def _open(cv2: Any, path: str) -> Any:
    """FFmpeg with one thread; any reader and thread count where OpenCV is older than 4.7 or built without FFmpeg."""
    if hasattr(cv2, "CAP_PROP_N_THREADS") and cv2.CAP_FFMPEG in cv2.videoio_registry.getStreamBackends():
        return cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    return cv2.VideoCapture(path)


def _scaled(cv2: Any, picture: np.ndarray, size: tuple[int, int] | None) -> np.ndarray:
    """Area means along sides that shrink, then lines between pixels along sides that grow, which is nearest to PyAV."""
    height, width = picture.shape[:2]
    if size is None or size == (height, width):
        return picture
    small = (min(width, size[1]), min(height, size[0]))
    if small != (width, height):
        picture = cv2.resize(picture, small, interpolation=cv2.INTER_AREA)
    if small != size[::-1]:
        picture = cv2.resize(picture, size[::-1], interpolation=cv2.INTER_LINEAR)
    return picture


def _stated_length(path: Path) -> int:
    """The bytes that an mp4, mov or avi says it has; 0 for others, of which OpenCV only guesses the frame count."""
    actual = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] == b"RIFF" and head[8:] == b"AVI ":
            return 8 + int.from_bytes(head[4:8], "little")
        if head[4:8] not in ISO_BOXES:
            return 0
        end = 0
        while end < actual:
            file.seek(end)
            box = file.read(16)
            length = int.from_bytes(box[8:16] if box[:4] == b"\0\0\0\1" else box[:4], "big")
            if length == 0:  # a last box may leave its length open
                return actual
            end += max(length, 8)
        return end
