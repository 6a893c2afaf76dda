"""What a model looks at, images or videos: which files a folder holds, and what the model sees of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedreel.media.images import FORMATS, SUFFIXES, decoded, image_files


@dataclass(frozen=True)
class Seen:
    """What the model sees of a file."""

    pixels: np.ndarray  # uint8, (side, side, 3), or (frames, side, side, 3) of a video
    fault: str = ""  # why the tail of a video is missing


@dataclass(frozen=True)
class Medium:
    """Images, or videos, as a task takes them."""

    one: str
    many: str
    suffixes: frozenset[str]
    formats: str
    batch: int  # so many go through the network at once
    side: int  # pixels of the square that the model sees
    frames: int | None  # evenly spaced ones of a video; None: an image
    files: Callable[[Path], list[str]]  # below a folder, sorted
    readings: Callable[[Sequence[Path]], Iterator[Seen | str]]  # of files, in their order; or why it cannot be read
    mend: str  # what to do with a file that is broken

    @property
    def expected(self) -> str:
        return f"{self.one} ({self.formats}), or a folder of {self.many}"


def image_medium(side: int) -> Medium:
    """Images, scaled to squares of so many pixels."""
    return Medium(
        one="an image",
        many="images",
        suffixes=SUFFIXES,
        formats=", ".join(FORMATS),
        batch=64,
        side=side,
        frames=None,
        files=image_files,
        readings=partial(_images, side=side),
        mend="get the file anew, or open it in another program and save it as PNG",
    )


def _images(paths: Sequence[Path], side: int) -> Iterator[Seen | str]:
    for pixels in decoded(paths, side):
        yield pixels if isinstance(pixels, str) else Seen(pixels)
