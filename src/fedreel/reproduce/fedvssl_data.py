"""What FedVSSL's tables take as given videos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedreel.data.clip_index import Clip, find
from fedreel.data.shards import INDEX, Shards
from fedreel.errors import DataError
from fedreel.tasks.pretrain import analysis as pretraining


def adapt(data: Path) -> dict[str, Any]:
    """Where given videos lie; folders of an owner each, without classes in them, make a client each."""
    clips = videos(data)
    pretraining.downstream_folders(data)
    settings: dict[str, Any] = {"data.source": str((data / "pretrain").resolve())}
    if all(clip.label and not clip.owner for clip in clips):
        settings["data.partition"] = whole_classes(len({clip.label for clip in clips}), 1)
    return settings


def videos(data: Path) -> Sequence[Clip]:
    """What there is to learn from: videos, or shards of them."""
    folder = data / "pretrain"
    if not folder.is_dir():
        raise DataError(
            "there are no videos to learn from", where=str(folder), expected="OWNER/CLASS/*.mp4 or OWNER/*.mp4"
        )
    return clips_in(folder)


def clips_in(folder: Path) -> Sequence[Clip]:
    """Those of a folder of videos, or of shards."""
    return Shards.open(folder).clips if (folder / INDEX).exists() else find(folder)


def whole_classes(clients: int, each: int) -> dict[str, Any]:
    """So many clients of so many classes, in order."""
    return {
        "name": "pathological",
        "num_partitions": clients,
        "num_classes_per_partition": each,
        "class_assignment_mode": "deterministic",
    }
