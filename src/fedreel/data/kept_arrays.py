"""Arrays that took long to compute, in files of the cache folder: read if whole, written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import numpy as np

from fedreel.data.bounded import read_npy


def kept(path: Path, shape: tuple[int, ...] | None = None) -> np.ndarray | None:
    """The float32 array that was kept there, if one was, of this shape where that is known."""
    try:
        found = read_npy(path)
    except (OSError, ValueError, EOFError):
        return None
    return found if shape in (None, found.shape) and found.dtype == np.float32 else None


def keep(path: Path, found: np.ndarray) -> None:
    """Under a name of our own first: other processes may be computing the same, and must never read a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            np.save(file, found)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
