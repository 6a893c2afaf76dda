"""Small videos whose frames say their own numbers, with or without sound, in several containers; for tests."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

RATE = 22050  # samples a second of sound; blocks of it are no whole milliseconds
FPS = 10
COLOURS = ((220, 30, 30), (20, 60, 200), (240, 220, 40), (20, 160, 60), (240, 240, 240), (150, 30, 160))
LENGTHS = (35, 22, 28, 15, 40, 20)  # frames of the scenes


def numbered(number: int, height: int = 32, width: int = 64) -> np.ndarray:
    """A picture of 8 upright bars, white for the ones of the number in binary."""
    bars = [255 * (number >> bit & 1) for bit in range(8)]
    row = np.array(bars, np.uint8)[np.arange(width) * 8 // width]
    return np.broadcast_to(row[None, :, None], (height, width, 3)).copy()


def read_number(picture: np.ndarray) -> int:
    width = picture.shape[1]
    grey = picture.mean(axis=(0, 2))
    return sum(int(grey[(2 * bit + 1) * width // 16] > 127) << bit for bit in range(8))


def scenes(height: int = 36, width: int = 64) -> list[np.ndarray]:
    """Six scenes, each of a colour of its own, with a bar that moves at a speed of its own."""
    out = []
    for k, (colour, length) in enumerate(zip(COLOURS, LENGTHS)):
        for t in range(length):
            frame = np.full((height, width, 3), colour, np.uint8)
            at = (1 + 2 * k) * t % (width - 8)
            frame[:, at : at + 8] = 255 - np.array(colour)
            out.append(frame)
    return out


def film(
    path: Path,
    pictures: Sequence[np.ndarray],
    *,
    fps: int = 10,
    ticks: Sequence[int] | None = None,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    options: dict[str, str] | None = None,
    sound: np.ndarray | None = None,
    sound_codec: str = "aac",
    movflags: str = "",
    title: str = "",
) -> Path:
    """Write pictures, shown at `ticks` milliseconds if given, and mono sound (samples,)."""
    with av.open(str(path), "w", container_options={"movflags": movflags} if movflags else {}) as file:
        if title:
            file.metadata["title"] = title
        stream: Any = file.add_stream(codec, rate=fps)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt, stream.options = pixels, options or {}
        base = Fraction(1, 1000) if ticks else Fraction(1, fps)
        stream.codec_context.time_base = base
        voice: Any = file.add_stream(sound_codec, rate=RATE, layout="mono") if sound is not None else None
        for i, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = ticks[i] if ticks else i, base
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
        if sound is not None:
            block = av.AudioFrame.from_ndarray(sound[None].astype(np.float32), format="fltp", layout="mono")
            block.sample_rate, block.pts, block.time_base = RATE, 0, Fraction(1, RATE)
            file.mux(voice.encode(block))
            file.mux(voice.encode(None))
    return path


def pictures_of(path: Path) -> tuple[list[np.ndarray], list[float]]:
    """All pictures, and when they are shown."""
    with av.open(str(path)) as file:
        frames = [(frame.to_ndarray(format="rgb24"), float(frame.time)) for frame in file.decode(video=0)]
    return [picture for picture, _ in frames], [time for _, time in frames]


def sound_of(path: Path) -> np.ndarray:
    """All sound from time 0 on, (samples,)."""
    with av.open(str(path)) as file:
        blocks = [(round(f.time * f.sample_rate), f.to_ndarray().reshape(1, -1)[0]) for f in file.decode(audio=0)]
    out = np.zeros(blocks[-1][0] + len(blocks[-1][1]), np.float32)
    for start, block in blocks:
        out[start : start + len(block)] = block
    return out
