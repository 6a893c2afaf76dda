"""A video cut down to some spans of its frames: H.264 and AAC in an mp4, picture and sound in step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.filter import Graph
from av.video.format import VideoFormat
from av.video.reformatter import VideoReformatter

from fedreel.errors import DataError
from fedreel.machine.files import new_file
from fedreel.machine.progress import Tell
from fedreel.media.frames import Film, Span, Timeline, select_frames
from fedreel.media.packets import open_file, reason

RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)  # what AAC can have
FINEST = 100_000  # ticks a second; players do not all take finer ones
DRIFT = 0.05  # seconds that stamps of sound may disagree with its number of samples before they are believed
TURNS: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("transpose", "cclock"),),
    (("hflip", ""), ("vflip", "")),
    (("transpose", "clock"),),
)

Watch = Callable[[int, Any], None]  # gets each frame that is kept, with its number


def cut(
    video: Path,
    spans: Sequence[Span],
    out: Path,
    *,
    timeline: Timeline | None = None,
    watch: Watch | None = None,
    tell: Tell | None = None,
) -> int:
    """Write the spans, given as first and last frames, one after another; returns the number of frames written.

    Frames keep the times between them, so a variable frame rate stays as it is. Sound that is missing is silence.
    """
    video = Path(video)
    line = timeline or _timeline(video)
    _check(spans, line)
    places = _places(spans, line)
    total, done = sum(last - first + 1 for first, last in spans), 0
    try:
        with new_file(Path(out)) as temporary:
            target = av.open(str(temporary), "w", format="mp4", container_options={"movflags": "+faststart"})
            with target, _Writer(target, video, line, places) as writer:
                for number, frame in select_frames(video, line, spans):
                    if watch:
                        watch(number, frame)
                    writer.add(number, frame)
                    done += 1
                    if tell:
                        tell("cutting", done / total)
    except (OSError, av.FFmpegError) as error:
        raise DataError("the video cannot be written", where=str(out), found=reason(error)) from error
    return done


@dataclass(frozen=True)
class _Place:
    """A span in ticks of the video, and the tick of the summary at which it starts."""

    first: int
    last: int
    start: int
    end: int
    at: int


def _places(spans: Sequence[Span], line: Timeline) -> list[_Place]:
    places, at = [], 0
    for first, last in spans:
        start, end = int(line.ticks[first]), int(line.ticks[last + 1])
        places.append(_Place(first, last, start, end, at))
        at += end - start
    return places


def _check(spans: Sequence[Span], line: Timeline) -> None:
    inside = all(0 <= first <= last < line.n_frames for first, last in spans)
    if not spans or not inside or any(a[1] >= b[0] for a, b in pairwise(spans)):
        raise DataError(
            "these spans cannot be cut from the video",
            expected=f"first and last frames in order, without overlap, from 0 to {line.n_frames - 1}",
            found=str(list(spans)[:8]),
        )


def _timeline(video: Path) -> Timeline:
    film = Film(video)
    for _ in film:
        pass
    return film.timeline


class _Writer:
    """The two streams of a summary, written side by side. What they look like is known from the first frame on."""

    def __init__(self, target: Any, video: Path, line: Timeline, places: list[_Place]) -> None:
        self.target, self.video, self.line, self.places = target, video, line, places
        self.base = line.base if line.base.denominator <= FINEST else Fraction(1, 90000)
        self.picture: Any = None
        self.sound: _Sound | None = None
        self.place, self.latest = iter(places), -1
        self.now = next(self.place)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self.picture is not None:
            self.target.mux(self.picture.encode(None))
            if self.sound:
                self.sound.finish()
        if self.sound:
            self.sound.close()

    def add(self, number: int, frame: Any) -> None:
        if self.picture is None:
            self._begin(frame)
        while number > self.now.last:
            self.now = next(self.place)
        tick = int(self.line.ticks[number]) - self.now.start + self.now.at
        upright = self.shape(frame)
        upright.pts = self.latest = max(round(tick * self.line.base / self.base), self.latest + 1)
        upright.time_base = self.base
        upright.pict_type = 0  # the encoder chooses, whatever it was before
        self.target.mux(self.picture.encode(upright))
        if self.sound:
            self.sound.write_until(tick * self.line.base)

    def _begin(self, frame: Any) -> None:
        self.shape = _Shape(frame)
        first = self.shape(frame)
        picture = self.target.add_stream("libx264", rate=Fraction(self.line.fps).limit_denominator(FINEST))
        picture.width, picture.height, picture.pix_fmt = first.width, first.height, "yuv420p"
        picture.options = {"crf": "20", "preset": "veryfast"}
        context = picture.codec_context
        context.time_base = self.base
        context.sample_aspect_ratio = 1 / self.line.pixel if self.shape.lying else self.line.pixel
        for name in ("color_range", "colorspace", "color_primaries", "color_trc"):
            setattr(context, name, getattr(first, name))
        self.picture = picture
        self.sound = _Sound.of(self.video, self.target, [(p.start, p.end) for p in self.places], self.line.base)


class _Shape:
    """Frames as the encoder takes them: upright, of one size with even sides, in its kind of pixels."""

    def __init__(self, first: Any) -> None:
        turns = round(first.rotation / 90) % 4
        self.lying = bool(turns % 2)
        self.size = max(first.width, 2), max(first.height, 2)
        self.scaler = VideoReformatter()
        steps = list(TURNS[turns])
        if self.size[0] % 2 or self.size[1] % 2:
            steps.append(("crop", "trunc(iw/2)*2:trunc(ih/2)*2:0:0"))
        self.graph = self._graph(steps) if steps else None

    def __call__(self, frame: Any) -> Any:
        flat = self.scaler.reformat(frame, *self.size, "yuv420p")
        if self.graph is None:
            return flat
        self.graph.push(flat)
        return self.graph.pull()

    def _graph(self, steps: list[tuple[str, str]]) -> Graph:
        graph = Graph()
        (width, height), base = self.size, Fraction(1, 90000)
        nodes = [graph.add_buffer(width=width, height=height, format=VideoFormat("yuv420p"), time_base=base)]
        nodes += [graph.add(name, settings) for name, settings in [*steps, ("buffersink", "")]]
        for one, following in pairwise(nodes):
            one.link_to(following)
        graph.configure()
        return graph


class _Sound:
    """The sound of some spans, put where their pictures are: every sample has its place, gaps are filled by silence."""

    def __init__(self, container: Any, source: Any, target: Any, spans: list[Span], base: Fraction) -> None:
        self.container, self.source, self.target = container, source, target
        given = source.codec_context.sample_rate
        self.rate = given if given in RATES else 48000
        self.stream = target.add_stream("aac", rate=self.rate)
        self.channels = min(source.codec_context.channels or 2, 2)
        self.stream.layout = self.layout = ("mono", "stereo")[self.channels - 1]
        self.spans = [(round(a * base * self.rate), round(b * base * self.rate)) for a, b in spans]
        self.samples = placed(self._decoded(), self.spans, self.channels)
        self.written = 0

    @classmethod
    def of(cls, video: Path, target: Any, spans: list[Span], base: Fraction) -> _Sound | None:
        """None for a video without sound that can be decoded."""
        container = open_file(video)
        streams = [s for s in container.streams.audio if s.codec_context is not None]
        if streams and streams[0].codec_context.sample_rate:
            return cls(container, streams[0], target, spans, base)
        container.close()
        return None

    def write_until(self, seconds: Fraction) -> None:
        while self.written < seconds * self.rate:
            block = next(self.samples, None)
            if block is None:
                return
            self._write(block)

    def finish(self) -> None:
        for block in self.samples:
            self._write(block)
        self.target.mux(self.stream.encode(None))

    def close(self) -> None:
        self.samples.close()
        self.container.close()

    def _write(self, block: np.ndarray) -> None:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block), format="fltp", layout=self.layout)
        frame.sample_rate, frame.pts, frame.time_base = self.rate, self.written, Fraction(1, self.rate)
        self.written += block.shape[1]
        self.target.mux(self.stream.encode(frame))

    def _decoded(self) -> Iterator[tuple[int, np.ndarray]]:
        """Blocks (channels, samples) with the sample at which each starts. A packet that is broken is left out."""
        expected, setup, resampler = None, None, None
        for packet in _packets(self.container, self.source):
            frames: list[Any] = []
            with suppress(av.FFmpegError, ValueError):
                frames = packet.decode()
            for frame in frames:
                if setup != (setup := (frame.format.name, frame.layout.name, frame.sample_rate)):
                    resampler = av.AudioResampler(format="fltp", layout=self.layout, rate=self.rate)
                at = expected or 0
                if frame.pts is not None:
                    at = round(frame.pts * frame.time_base * self.rate)
                if expected is not None and abs(at - expected) < DRIFT * self.rate:
                    at = expected  # stamps are often rounded: samples follow each other without a gap
                frame.pts = None
                for part in resampler.resample(frame):  # type: ignore[union-attr]
                    block = part.to_ndarray().reshape(self.channels, -1)
                    yield at, block
                    at += block.shape[1]
                expected = at


def placed(
    blocks: Iterator[tuple[int, np.ndarray]], spans: Sequence[Span], channels: int
) -> Generator[np.ndarray, None, None]:
    """Blocks of samples, cut to spans (start and end, not included) and put one after another without a hole.

    Together they have exactly as many samples as the spans, whatever is missing, early or twice.
    """
    written = at = which = 0
    for start, block in blocks:
        while which < len(spans) and spans[which][1] <= start:
            at += spans[which][1] - spans[which][0]
            which += 1
        offset = at
        for first, last in spans[which:]:
            if first >= start + block.shape[1]:
                break
            begin, end = max(first, start), min(last, start + block.shape[1])
            due = offset + begin - first
            yield from _silence(channels, due - written)
            part = block[:, begin - start + max(written - due, 0) : end - start]
            if part.size:
                yield part
            written = max(written, due + end - begin)
            offset += last - first
    yield from _silence(channels, sum(b - a for a, b in spans) - written)


def _silence(channels: int, samples: int) -> Iterator[np.ndarray]:
    for start in range(0, samples, 48000):
        yield np.zeros((channels, min(48000, samples - start)), np.float32)


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    """Those of the stream; none after one that cannot be read."""
    with suppress(av.FFmpegError, ValueError):
        yield from container.demux(stream)
