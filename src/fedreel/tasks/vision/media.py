"""Images and videos as a model takes them: which files a folder holds, and what each becomes, just as in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedreel.data.clip_index import Clip, videos
from fedreel.data.shards import build
from fedreel.errors import DataError, RunError
from fedreel.machine.processes import cores
from fedreel.media import video
from fedreel.tasks.image import pictures
from fedreel.tasks.image.task import Image
from fedreel.tasks.recognition.task import Recognition

AHEAD = 32  # videos that may wait in memory for the network


@dataclass(frozen=True)
class Seen:
    """What the model sees of a file."""

    pixels: np.ndarray  # uint8, (side, side, 3), or (frames, side, side, 3) of a video
    fault: str = ""  # why the tail of a video is missing


@dataclass(frozen=True)
class Medium:
    """What a model looks at."""

    one: str
    many: str
    suffixes: frozenset[str]
    formats: str
    batch: int  # so many go through the network at once
    side: int  # pixels of the square that the model sees
    frames: int | None  # evenly spaced ones of a video; None: an image
    files: Callable[[Path], list[str]]  # below a folder, sorted
    readings: Callable[[Sequence[Path]], Iterator[Seen | str]]  # of files, in their order; or why it cannot be read
    others: Mapping[str, str]  # what to do with files of other kinds
    mend: str  # what to do with one that is broken

    @property
    def expected(self) -> str:
        return f"{self.one} ({self.formats}), or a folder of {self.many}"


def medium_of(task: Image | Recognition) -> Medium:
    """Images or videos, as this task takes them."""
    skeleton = {"a recorded skeleton": "give --model a run of the task skeleton"}
    if isinstance(task, Image):
        return Medium(
            one="an image",
            many="images",
            suffixes=pictures.SUFFIXES,
            formats=", ".join(pictures.FORMATS),
            batch=64,
            side=task.size,
            frames=None,
            files=pictures.image_files,
            readings=partial(_images, side=task.size),
            others={
                "a video": "save a frame of it as PNG or JPEG, or give --model a run of the task recognition",
                **skeleton,
            },
            mend="get the file anew, or open it in another program and save it as PNG",
        )
    return Medium(
        one="a video",
        many="videos",
        suffixes=video.SUFFIXES,
        formats="such as mp4, mov, mkv, webm or avi",
        batch=8,
        side=task.size,
        frames=task.frames,
        files=videos,
        readings=partial(_videos, frames=task.frames, side=task.size),
        others={"an image": "give --model a run of the task image", **skeleton},
        mend="get the file anew, or open it in another program and save it as mp4",
    )


def _images(paths: Sequence[Path], side: int) -> Iterator[Seen | str]:
    for made in pictures.decoded(paths, side):
        yield made if isinstance(made, str) else Seen(made)


def _videos(paths: Sequence[Path], frames: int, side: int) -> Iterator[Seen | str]:
    """By threads: decoders let the others run."""
    with ThreadPoolExecutor(cores()) as pool:
        for start in range(0, len(paths), AHEAD):
            yield from pool.map(partial(_video, frames=frames, side=side), paths[start : start + AHEAD])


def _video(path: Path, frames: int, side: int) -> Seen | str:
    """Shards of this one clip, whose frames are picked as in training; on disk, since a video may be long."""
    if isinstance(pictures.decode(path, 1), np.ndarray):  # for decoders of video it would be one of a single frame
        return "it is an image"
    with TemporaryDirectory(ignore_cleanup_errors=True) as place:
        try:
            made = build([Clip(path.name)], path.parent, Path(place), size=(side, side), frames=frames, workers=1)
        except DataError as error:
            return error.found or error.problem
        except OSError as error:
            raise RunError(
                "the frames of a video cannot be kept while it is looked at",
                where=place,
                found=error.strerror or str(error),
                hint="set TMPDIR to a folder with more room",
            ) from error
        return Seen(made.stack([0], frames)[0], made.cut[0].reason if made.cut else "")
