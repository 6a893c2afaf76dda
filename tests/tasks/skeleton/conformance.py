"""Small data of the task for engine conformance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.moves import LEFT, RIGHT, motion, write_set

STGCN = {"name": "stgcn", "width": 4, "features": 8}


def settings(folder: Path) -> dict[str, Any]:
    return {"joints": "kinect-v1", "classes": 3, "backbone": STGCN, "length": 12, "bodies": 1}


def write(folder: Path, clients: tuple[str, ...]) -> None:
    """A set of each client, of two or three classes."""
    folder.mkdir(parents=True)
    for client in clients:
        classes = LEFT if client == "c0" else RIGHT
        moves = [motion(i % len(classes), 8 + i, ord(client[-1]) + i) for i in range(4 * len(classes))]
        write_set(folder / f"{client}.npz", moves, classes)
