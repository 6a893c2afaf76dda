"""Recognising videos: a video becomes what the model sees of it, just as in training; and images, by models that look
at every frame alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedreel.data.clip_index import Clip, videos
from fedreel.data.shards import build
from fedreel.errors import DataError, RunError
from fedreel.machine.processes import cores
from fedreel.media import images, video
from fedreel.models.frames import FramesConfig
from fedreel.tasks.recognition.task import Recognition
from fedreel.tasks.use.options import Request
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.tasks.vision.media import Medium, Seen, image_medium
from fedreel.tasks.vision.recognize import recognize_files
from fedreel.tasks.vision.result import Album, FileRecognition

AHEAD = 32  # videos that may wait in memory for the network


def recognize_videos(request: Request, top: int) -> FileRecognition | Album:
    """Say what a video shows, or each one below a folder."""
    return recognize_files(request, top, partial(_medium, request.source))


def _medium(source: Path, task: Contrasting) -> Medium:
    assert isinstance(task, Recognition)
    alone = isinstance(task.backbone, FramesConfig) and task.head == "linear"  # no frame is compared with another
    if alone and _is_of_images(source):
        return replace(image_medium(task.size), readings=partial(_stills, frames=task.frames, side=task.size))
    return Medium(
        one="a video",
        many="videos",
        suffixes=video.SUFFIXES,
        formats="such as mp4, mov, mkv, webm or avi",
        batch=8,
        side=task.size,
        frames=task.frames,
        files=videos,
        readings=partial(_read, frames=task.frames, side=task.size),
        mend="get the file anew, or open it in another program and save it as mp4",
    )


def _is_of_images(source: Path) -> bool:
    """Whether it is an image, or a folder of images without a video."""
    if source.is_dir():
        return bool(images.image_files(source)) and not videos(source)
    return source.suffix.lower() in images.SUFFIXES


def _stills(paths: Sequence[Path], frames: int, side: int) -> Iterator[Seen | str]:
    """Clips in which nothing moves."""
    for pixels in images.decoded(paths, side):
        yield pixels if isinstance(pixels, str) else Seen(np.repeat(pixels[None], frames, axis=0))


def _read(paths: Sequence[Path], frames: int, side: int) -> Iterator[Seen | str]:
    """By threads: decoders let the others run."""
    with ThreadPoolExecutor(cores()) as pool:
        for start in range(0, len(paths), AHEAD):
            yield from pool.map(partial(_read_one, frames=frames, side=side), paths[start : start + AHEAD])


def _read_one(path: Path, frames: int, side: int) -> Seen | str:
    """Shards of this one clip, whose frames are picked as in training; on disk, since a video may be long."""
    if isinstance(images.decode(path, 1), np.ndarray):  # for decoders of video it would be one of a single frame
        return "it is an image"
    with TemporaryDirectory(ignore_cleanup_errors=True) as place:
        try:
            shards = build([Clip(path.name)], path.parent, Path(place), side=side, frames=frames, workers=1)
        except DataError as error:
            return error.found or error.problem
        except OSError as error:
            raise RunError(
                "the frames of a video cannot be kept while it is looked at",
                where=place,
                found=error.strerror or str(error),
                hint="set TMPDIR to a folder with more room",
            ) from error
        return Seen(shards.stack([0], frames)[0], shards.cut[0].reason if shards.cut else "")
