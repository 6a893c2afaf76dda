"""A video's frames and when each is shown: all of them in one pass, or later some of them, found by their times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Disposition

from fedreel.errors import DataError
from fedreel.machine.progress import Tell
from fedreel.media.video import UNSTATED_FPS, reason, unreadable

Span = tuple[int, int]  # first and last frame


@dataclass(frozen=True)
class Timeline:
    """When frames are shown. A variable frame rate is nothing special: only the times count."""

    ticks: np.ndarray  # (frames + 1,) in units of `base` seconds: the start of each frame, and the end of the last
    keys: np.ndarray  # numbers of the frames where decoding can start; just frame 0 if times are not reliable
    base: Fraction
    fps: float
    pixel: Fraction = Fraction(1)  # width of a pixel by its height
    fault: str = ""  # why the tail is missing
    counted: bool = False  # frames have no usable times of their own and can only be found by counting

    @property
    def n_frames(self) -> int:
        return len(self.ticks) - 1

    def seconds(self, frame: int) -> float:
        """From the beginning of the first frame to that of this one."""
        return float((int(self.ticks[frame]) - int(self.ticks[0])) * self.base)


class Film:
    """Iterate over a video's decoded frames, a few in memory at a time; afterwards `timeline` tells their times."""

    def __init__(self, path: Path, tell: Tell | None = None) -> None:
        self.path, self.tell = Path(path), tell
        self.fps, self.fault = UNSTATED_FPS, ""
        self.base, self.pixel = Fraction(1, 90000), Fraction(1)
        self._ticks: list[int] = []
        self._keys: list[int] = []
        self._last = 0  # how long the latest frame is shown
        self._counted = False

    def __iter__(self) -> Iterator[Any]:
        with opened(self.path) as (container, stream):
            self.fps = float(stream.average_rate or stream.guessed_rate or UNSTATED_FPS)
            self.base = stream.time_base or self.base
            self.pixel = stream.codec_context.sample_aspect_ratio or Fraction(1)
            promised = stream.frames or round(float(container.duration or 0) / av.time_base * self.fps)
            packets = 0
            try:
                for packet in container.demux(stream):
                    if packet.is_corrupt:
                        raise av.InvalidDataError(0, "a packet is cut short")
                    packets += packet.size > 0
                    for frame in packet.decode():
                        self._note(frame)
                        if self.tell and promised:
                            self.tell("looking", min(len(self._ticks) / promised, 1.0))
                        yield frame
            except (av.FFmpegError, ValueError) as error:
                self.fault = f"the video breaks off after packet {packets}: {reason(error)}"
            else:
                self.fault = self._quiet_end(packets, stream.frames, float(container.duration or 0) / av.time_base)
        if not self._ticks:
            raise unreadable(self.path, self.fault or "it holds no frames")

    @property
    def time(self) -> float:
        """Seconds from the beginning of the first frame to that of the latest."""
        return float((self._ticks[-1] - self._ticks[0]) * self.base)

    @property
    def timeline(self) -> Timeline:
        keys = [0] if self._counted else self._keys
        ticks = [*self._ticks, self._ticks[-1] + self._last]
        return Timeline(
            np.array(ticks), np.array(keys), self.base, self.fps, self.pixel, self.fault, counted=self._counted
        )

    def _quiet_end(self, packets: int, promised: int, seconds: float) -> str:
        """Some containers end quietly where bytes are missing, but the header knows how much there was."""
        if packets < promised:
            return f"the header promises {promised} frames, the file holds {packets}"
        reached = self.time + float(self._last * self.base) if self._ticks else 0.0
        if self._ticks and seconds - reached > max(1.0, 0.1 * seconds):
            return f"the header promises {seconds:.1f} s, but the pictures end after {reached:.1f} s"
        return ""

    def _note(self, frame: Any) -> None:
        usual = max(round(1 / (self.fps * self.base)), 1)
        expected = self._ticks[-1] + self._last if self._ticks else 0
        late = frame.pts is not None and (not self._ticks or frame.pts > self._ticks[-1])
        self._counted |= not late
        if frame.key_frame or not self._ticks:
            self._keys.append(len(self._ticks))
        self._ticks.append(frame.pts if late else max(expected, self._ticks[-1] + 1 if self._ticks else 0))
        self._last = frame.duration or usual


def some(path: Path, timeline: Timeline, spans: Sequence[Span]) -> Iterator[tuple[int, Any]]:
    """The frames of ascending spans with their numbers. What lies between is jumped over as far as key frames allow."""
    for run in _runs(timeline, spans):
        wanted = {number for first, last in run for number in range(first, last + 1)}
        for number, frame in _from(path, timeline, run[0][0]):
            if number in wanted:
                yield number, frame
            if number >= run[-1][1]:
                break


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The file and its video stream; cover pictures of sound files are no video."""
    if not path.is_file():
        raise DataError("there is no such video file", where=str(path))
    try:
        container = av.open(str(path))
    except (av.FFmpegError, OSError, ValueError) as error:
        raise unreadable(path, reason(error)) from error
    with container:
        streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        if not streams:
            raise unreadable(path, "the file has no video stream" + (", only sound" if container.streams.audio else ""))
        if streams[0].codec_context is None:
            raise unreadable(path, "there is no decoder for its video stream")
        streams[0].thread_type = "AUTO"
        yield container, streams[0]


def _runs(timeline: Timeline, spans: Sequence[Span]) -> list[list[Span]]:
    """Spans that are decoded in one go, since there is no key frame to jump to between them."""
    runs: list[list[Span]] = []
    for first, last in spans:
        if runs and _key_before(timeline, first) <= runs[-1][-1][1] + 1:
            runs[-1].append((first, last))
        else:
            runs.append([(first, last)])
    return runs


def _key_before(timeline: Timeline, frame: int) -> int:
    at = int(np.searchsorted(timeline.keys, frame, side="right")) - 1
    return int(timeline.keys[max(at, 0)])


def _from(path: Path, timeline: Timeline, first: int, jump: bool = True) -> Iterator[tuple[int, Any]]:
    """Numbered frames from the key frame before `first` on, or from the beginning if the jump ends behind `first`."""
    key = _key_before(timeline, first)
    early = False
    with opened(path) as (container, stream):
        if jump and key:
            with suppress(av.FFmpegError):  # then it starts at the beginning, which is right too
                container.seek(int(timeline.ticks[key]), stream=stream, backward=True)
        for count, frame in enumerate(_decoded(container, stream)):
            number = count if timeline.counted else _number(timeline, frame.pts)
            if number is None:
                continue
            early = early or number <= first
            if not early:
                break
            yield number, frame
    if not early and jump and key:
        yield from _from(path, timeline, first, jump=False)


def _decoded(container: Any, stream: Any) -> Iterator[Any]:
    """All frames; of a broken tail those too that the decoder still holds, since they were counted the first time."""
    try:
        for packet in container.demux(stream):
            yield from packet.decode()
    except (av.FFmpegError, ValueError):
        try:
            yield from stream.codec_context.decode(None)
        except (av.FFmpegError, ValueError):
            return


def _number(timeline: Timeline, pts: int | None) -> int | None:
    if pts is None:
        return None
    at = int(np.searchsorted(timeline.ticks[:-1], pts))
    return at if at < timeline.n_frames and timeline.ticks[at] == pts else None
