"""The files of shards that hold frames: mapped into memory, and of each clip the frames that are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from fedreel.data.clip_index import Clip
from fedreel.errors import DataError
from fedreel.media.pictures import decode_jpeg
from fedreel.media.video import middle_corner

MAPPED_PARTS = 256  # every mapped part keeps a file descriptor, of which a process has perhaps 1024


@dataclass(frozen=True)
class ShardClip(Clip):
    """A clip in the shards: `frames` frames of height x width pixels in the `size` bytes of part `part` that begin at
    byte `offset`, stored at `fps` a second."""

    fps: float = 0.0
    part: int = 0
    offset: int = 0
    size: int = 0
    frames: int = 0
    height: int = 0
    width: int = 0

    @property
    def nbytes(self) -> int:
        """Of its decoded frames."""
        return self.frames * self.height * self.width * 3


class Parts:
    """The parts in a folder. Frames are raw bytes (`quality` 0), of which one gets read-only views, or JPEG pictures,
    decoded when asked for. Clips' shorter sides have `side` pixels."""

    def __init__(self, folder: Path, side: int, quality: int) -> None:
        self.folder, self.side, self.quality = folder, side, quality
        self._mapped: dict[int, np.ndarray] = {}
        self._mapping = Lock()

    def whole(self, clip: ShardClip) -> np.ndarray:
        """All its frames, (T, H, W, 3), in its own shape."""
        return self._raw(clip) if not self.quality else self._decoded(clip, np.arange(clip.frames))

    def frames(self, clip: ShardClip, times: np.ndarray, corner: tuple[int, int] | None = None) -> np.ndarray:
        """These of its frames, (len(times), side, side, 3): the square that begins at a row and column [that in the
        middle]. Before the first and after the last frame the clip stands still."""
        times = np.minimum(np.maximum(times, 0), clip.frames - 1)
        top, left = middle_corner(clip.height, clip.width) if corner is None else corner
        found = self._decoded(clip, times) if self.quality else _taken(self._raw(clip), times)
        return found[:, top : top + self.side, left : left + self.side]

    def file(self, number: int) -> Path:
        return part_file(self.folder, number, self.quality)

    def _raw(self, clip: ShardClip) -> np.ndarray:
        return self._bytes(clip).reshape(clip.frames, clip.height, clip.width, 3)

    def _decoded(self, clip: ShardClip, times: np.ndarray) -> np.ndarray:
        """Each picture is decoded once, however often it is asked for. Of a clip first come its pictures, then where
        each of them begins."""
        stored = self._bytes(clip)
        starts = stored[-4 * (clip.frames + 1) :].view(np.uint32)
        distinct, places = np.unique(times, return_inverse=True)
        pictures = np.empty((len(distinct), clip.height, clip.width, 3), np.uint8)
        for picture, time in zip(pictures, distinct):
            try:
                decode_jpeg(stored[starts[time] : starts[time + 1]], picture)
            except ValueError as error:
                where = f"{self.file(clip.part)}, frame {time} of {clip.path}"
                hint = f"remove {self.folder} and build the shards again"
                raise DataError("a stored picture is damaged", where=where, found=str(error), hint=hint) from error
        return pictures if len(distinct) == len(times) and (places[1:] > places[:-1]).all() else pictures[places]

    def _bytes(self, clip: ShardClip) -> np.ndarray:
        return self._part(clip.part)[clip.offset : clip.offset + clip.size]

    def _part(self, number: int) -> np.ndarray:
        with self._mapping:  # several threads may read
            if number not in self._mapped:
                if len(self._mapped) >= MAPPED_PARTS:
                    del self._mapped[next(iter(self._mapped))]
                self._mapped[number] = np.asarray(np.memmap(self.file(number), np.uint8, "r"))
            return self._mapped[number]


def part_file(folder: Path, number: int, quality: int) -> Path:
    return folder / f"part-{number:05d}.{'jpegs' if quality else 'u8'}"


def _taken(clip: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Frames of a clip: a view where they are evenly apart, else a copy."""
    step = int(times[1] - times[0]) if len(times) > 1 else 1
    even = len(times) > 0 and step > 0 and (times[1:] - times[:-1] == step).all()
    return clip[times[0] : times[-1] + 1 : step] if even else clip[times]
