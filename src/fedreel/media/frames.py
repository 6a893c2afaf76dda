"""A video's frames and when each is shown: all of them in one pass, or later some of them, found by their times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from fedreel.machine.progress import Tell
from fedreel.media.packets import UNSTATED_FPS, opened, unreadable

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
        with opened(self.path) as pictures:
            stream, self.fps = pictures.stream, pictures.fps
            self.base = stream.time_base or self.base
            self.pixel = stream.codec_context.sample_aspect_ratio or Fraction(1)
            promised = stream.frames or round(pictures.seconds * self.fps)
            for frame in pictures.frames():
                self._note(frame)
                if self.tell and promised:
                    self.tell("looking", min(len(self._ticks) / promised, 1.0))
                yield frame
            self.fault = pictures.fault
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

    def _note(self, frame: Any) -> None:
        usual = max(round(1 / (self.fps * self.base)), 1)
        expected = self._ticks[-1] + self._last if self._ticks else 0
        late = frame.pts is not None and (not self._ticks or frame.pts > self._ticks[-1])
        self._counted |= not late
        if frame.key_frame or not self._ticks:
            self._keys.append(len(self._ticks))
        self._ticks.append(frame.pts if late else max(expected, self._ticks[-1] + 1 if self._ticks else 0))
        self._last = frame.duration or usual


def select_frames(path: Path, timeline: Timeline, spans: Sequence[Span]) -> Iterator[tuple[int, Any]]:
    """The frames of ascending spans with their numbers. What lies between is jumped over as far as key frames allow."""
    for run in _runs(timeline, spans):
        wanted = {number for first, last in run for number in range(first, last + 1)}
        for number, frame in _from(path, timeline, run[0][0]):
            if number in wanted:
                yield number, frame
            if number >= run[-1][1]:
                break


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
    with opened(path) as pictures:
        container, stream = pictures.container, pictures.stream
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
