"""Recognising images: an image becomes what the model sees of it, just as in training."""

from __future__ import annotations

from fedreel.tasks.image.task import Image
from fedreel.tasks.use.options import Request
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.tasks.vision.media import Medium, image_medium
from fedreel.tasks.vision.recognize import recognize_files
from fedreel.tasks.vision.result import Album, FileRecognition


def recognize_images(request: Request, top: int) -> FileRecognition | Album:
    """Say what an image shows, or each one below a folder."""
    return recognize_files(request, top, _medium)


def _medium(task: Contrasting) -> Medium:
    assert isinstance(task, Image)
    return image_medium(task.size)
