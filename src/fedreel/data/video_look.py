"""One video file looked at: quickly, by its packets and a few frames, or thoroughly, by decoding all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedreel.errors import DataError
from fedreel.media.packets import Pictures, opened
from fedreel.media.video import rgb

FIRST = 4  # packets decoded at the beginning
PARTS = 4  # a key frame is decoded in each later part of a file, and its last one
START = 16  # bytes of a packet: no encoder begins one with so many zeros, but a hole in a file does


@dataclass(frozen=True)
class Job:
    """A file to look at, and whether another one may be like it."""

    path: Path
    thorough: bool
    twin: bool


@dataclass(frozen=True)
class Look:
    """What a video turned out to be. Without frames there is a fault."""

    size: str = ""
    fps: float = 0.0
    frames: int = 0
    fault: str = ""
    damage: str = ""  # what the decoder made up for
    digest: str = ""  # of all bytes, where there may be a twin


def look(job: Job) -> Look:
    """Look at one file. What is wrong with it is told and not raised, since others are to be looked at after it."""
    try:
        digest = _digest(job.path) if job.twin else ""
        seen = None if job.thorough else _glance(job.path)
        return replace(seen or _decode_all(job.path), digest=digest)
    except DataError as error:
        return Look(fault=": ".join(filter(None, (error.problem, error.found))))
    except Exception as error:
        return Look(fault=f"it cannot be read: {str(error) or type(error).__name__}")


def _glance(path: Path) -> Look | None:
    """What all packets and a few frames tell. None if one of them looks wrong: then the whole file must be decoded to
    know whether it is."""
    import av

    first: list[Any] = []
    keys: list[Any] = []
    latest = None
    with opened(path, threads=1) as pictures:
        length = path.stat().st_size
        raw = pictures.stream.codec_context.name == "rawvideo"  # in which black is zeros
        for packet in pictures.packets():
            if not raw and packet.size and not any(memoryview(packet)[:START]):
                return None
            if packet.size and len(first) < FIRST:
                first.append(packet)
            elif packet.size and packet.is_keyframe:
                latest = packet
                if PARTS * (packet.pos or 0) >= (len(keys) + 1) * length:
                    keys.append(packet)
        if latest is not None and latest not in keys:
            keys.append(latest)
        try:
            frames = _decoded(pictures, first)
            if not frames or not all(_decoded(pictures, [key]) for key in keys):
                return None
            return Look(_size(frames[0]), pictures.fps, pictures.count, pictures.fault)
        except (av.FFmpegError, ValueError):
            return None


def _decode_all(path: Path) -> Look:
    size, frames, damaged = "", 0, []
    with opened(path, threads=1) as pictures:
        for frame in pictures.frames():
            size, frames = size or _size(frame), frames + 1
            damaged += [frames] if frame.is_corrupt else []
    if not frames:
        return Look(fault=pictures.fault or "the video holds no frames")
    fault = f"only the first {frames} frames can be read: {pictures.fault}" if pictures.fault else ""
    damage = f"{len(damaged)} of {frames} frames are damaged, the first is frame {damaged[0]}" if damaged else ""
    return Look(size, pictures.fps, frames, fault, damage)


def _decoded(pictures: Pictures, packets: Sequence[Any]) -> list[Any]:
    """The frames of some packets, the first of which needs none before it; none if any is damaged."""
    decoder = pictures.stream.codec_context
    frames = [frame for packet in packets for frame in packet.decode()] + decoder.decode(None)
    decoder.flush_buffers()
    return [] if any(frame.is_corrupt for frame in frames) else frames


def _size(frame: Any) -> str:
    """As a viewer sees it; the pixels are converted, since not all can be."""
    from av.video.reformatter import VideoReformatter

    height, width, _ = rgb(frame, None, VideoReformatter()).shape
    return f"{width}x{height}"


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
