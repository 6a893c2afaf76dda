"""A video file opened: the packets of its pictures in order, the frames in them, and where the file breaks off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedreel.errors import DataError

MAX_PIXELS = 2**25  # of one picture: 8K, 7680 x 4320, is a little less
LIMITS = {"max_pixels": str(MAX_PIXELS)}  # for FFmpeg, which else takes what a file claims
UNSTATED_FPS = 25.0  # what a stream without a frame rate is taken to have


class Pictures:
    """A video's packets, or the frames in them, to be gone through once. Then `fault` says why the tail is missing; it
    is empty for a whole file."""

    def __init__(self, container: Any, stream: Any) -> None:
        import av

        self.container, self.stream = container, stream
        self.fps = float(stream.average_rate or stream.guessed_rate or UNSTATED_FPS)
        self.seconds = float(container.duration or 0) / av.time_base  # by the header, of the longest stream
        self.count = 0  # of packets so far
        self.fault = ""
        self._first = self._end = 0.0  # the times of the pictures so far, in seconds

    def packets(self) -> Iterator[Any]:
        """Every packet; the last is empty, and makes a decoder give what it still holds."""
        import av

        try:
            for packet in self.container.demux(self.stream):
                if packet.is_corrupt:
                    raise av.InvalidDataError(0, "a packet is cut short")
                self._note(packet)
                yield packet
        except (av.FFmpegError, ValueError) as error:
            self.fault = self.broken(error)
        else:
            self.fault = self._missing()

    def frames(self) -> Iterator[Any]:
        """Every frame. At a break, what the decoder still holds stays there: with packets missing, its order may have
        gaps."""
        import av

        for packet in self.packets():
            try:
                frames = packet.decode()
            except (av.FFmpegError, ValueError) as error:
                self.fault = self.broken(error)
                return
            yield from frames

    def broken(self, error: Exception) -> str:
        return f"the video breaks off after packet {self.count}: {reason(error)}"

    def _note(self, packet: Any) -> None:
        self.count += packet.size > 0
        if packet.size and packet.pts is not None:
            start = float(packet.pts * packet.time_base)
            self._first = start if self.count == 1 else min(self._first, start)
            self._end = max(self._end, start + float((packet.duration or 0) * packet.time_base))

    def _missing(self) -> str:
        """Some containers end quietly where bytes are missing, but the header knows how much there was."""
        promised = self.stream.frames
        if self.count < promised:
            return f"the header promises {promised} frames, the file holds {self.count}"
        reached = max(self._end, self._end - self._first)
        # where there is sound as well, the header's time may be that of the sound
        slack = max(1.0, 0.1 * self.seconds) if len(self.container.streams) > 1 else max(0.1, 2 / self.fps)
        if not promised and self._end and self.seconds - reached > slack:
            return f"the header promises {self.seconds:.1f} s, but the pictures end after {reached:.1f} s"
        return ""


def open_file(path: Path, **settings: Any) -> Any:
    """Titles come in all encodings. PyAV takes any since 19, and no longer wants to be told."""
    import av

    if int(av.__version__.split(".")[0]) < 19:
        settings["metadata_errors"] = "replace"
    return av.open(str(path), **settings)


@contextmanager
def opened(path: Path, threads: int | None = None) -> Iterator[Pictures]:
    """The pictures of a file, decoded by so many threads [as many as pay]. Covers of sound files are no video."""
    import av
    from av.stream import Disposition

    if not path.is_file():
        raise DataError("there is no such video file", where=str(path))
    try:
        container = open_file(path, options=LIMITS)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise unreadable(path, reason(error)) from error
    with container:
        streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        if not streams:
            raise unreadable(path, "the file has no video stream" + (", only sound" if container.streams.audio else ""))
        if streams[0].codec_context is None:
            raise unreadable(path, "there is no decoder for its video stream")
        size = streams[0].codec_context
        if not 0 < size.width * size.height <= MAX_PIXELS:
            raise unreadable(
                path, f"its pictures have no size, or more than the {MAX_PIXELS} pixels that are safe to decode"
            )
        streams[0].codec_context.options = LIMITS  # the size may change on the way
        if threads is None:
            streams[0].thread_type = "AUTO"
        else:
            streams[0].codec_context.thread_count = threads
        yield Pictures(container, streams[0])


def unreadable(path: Path, found: str) -> DataError:
    return DataError(
        "this file cannot be read as video",
        where=str(path),
        expected="a video file, such as mp4, mov, mkv, webm or avi, with at least one frame",
        found=found,
    )


def reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
