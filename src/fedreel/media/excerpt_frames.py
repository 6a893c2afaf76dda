"""Which frames of a video stand for it: a few short clips, evenly spaced."""

from __future__ import annotations

import numpy as np

EXCERPTS = 10  # of a video


def excerpt_frames(n_frames: int, frames: int) -> np.ndarray:
    """Numbers (EXCERPTS, frames): centres evenly from frames / 2 to n_frames - frames / 2. A short video loops."""
    starts = np.linspace(0, n_frames - frames, EXCERPTS).round().astype(np.int64)
    return (starts[:, None] + np.arange(frames)) % n_frames
