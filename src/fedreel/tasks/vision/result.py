"""What a model makes of an image or a video, or of those of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedreel.tasks.use import recognition

OF_VIDEOS = ("frames", "fault")  # what an image does not have


@dataclass(frozen=True, kw_only=True)
class FileRecognition(recognition.Recognition):
    """What an image or a video shows."""

    side: int  # pixels of the square that the model sees
    frames: int | None = None  # of a video that the model sees, evenly spaced; None: an image
    fault: str = ""  # why the tail of a video is missing

    def as_json(self) -> dict[str, Any]:
        told = super().as_json()
        return {name: value for name, value in told.items() if self.frames is not None or name not in OF_VIDEOS}


@dataclass(frozen=True, kw_only=True)
class Album(recognition.Album):
    """What the images or videos of a folder show."""

    entries: Sequence[FileRecognition]
