"""Harnesses for films and pictures."""

from __future__ import annotations

import io
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from fedreel.data.video_look import Job, look
from fedreel.media import video
from fedreel.media.images import decode
from fuzz.harness import Harness


def frames() -> np.ndarray:
    drawn = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), np.uint8)
    return drawn.repeat(4, 1).repeat(4, 2)


@cache
def film(suffix: str, codec: str) -> bytes:
    import av

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=8)
            stream.height = stream.width = 32
            stream.pix_fmt = "yuv420p"
            for frame in frames():
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode(None))
        return path.read_bytes()


def picture(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frames()[0]).save(out, kind)
    return out.getvalue()


def read_picture(path: Path) -> object:
    return decode(path, 16)


def glance(path: Path) -> object:
    return look(Job(path, thorough=False, twin=True))


HARNESSES = (
    Harness("mp4", lambda: [film(".mp4", "libx264"), film(".mov", "mpeg4")], video.read_lenient, file="a.mp4"),
    Harness("mp4 look", lambda: [film(".mp4", "libx264"), film(".avi", "mpeg4")], glance, file="a.mp4"),
    Harness("avi", lambda: [film(".avi", "mpeg4"), film(".mkv", "mpeg4")], video.read_lenient, file="a.avi"),
    *(
        Harness(kind.lower(), lambda kind=kind: [picture(kind)], read_picture, file=f"a.{kind.lower()}")  # type: ignore[misc]
        for kind in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM")
    ),
)
