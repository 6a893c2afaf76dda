"""Recognising images: an image becomes what the model sees of it, just as in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from fedreel.media.images import FORMATS, SUFFIXES, decoded, image_files
from fedreel.tasks.image.task import Image
from fedreel.tasks.use.options import Request
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.tasks.vision.media import Medium, Seen
from fedreel.tasks.vision.recognize import recognize_files
from fedreel.tasks.vision.result import Album, FileRecognition


def recognize_images(request: Request, top: int) -> FileRecognition | Album:
    """Say what an image shows, or each one below a folder."""
    return recognize_files(request, top, _medium)


def _medium(task: Contrasting) -> Medium:
    assert isinstance(task, Image)
    return Medium(
        one="an image",
        many="images",
        suffixes=SUFFIXES,
        formats=", ".join(FORMATS),
        batch=64,
        side=task.size,
        frames=None,
        files=image_files,
        readings=partial(_read, side=task.size),
        mend="get the file anew, or open it in another program and save it as PNG",
    )


def _read(paths: Sequence[Path], side: int) -> Iterator[Seen | str]:
    for pixels in decoded(paths, side):
        yield pixels if isinstance(pixels, str) else Seen(pixels)
