"""What features are, and the card by which two kinds of them can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class Features(Protocol):
    """A step of a video as numbers. It sees `frames` evenly spaced frames of the step, scaled to `size` (h, w); where
    it has a `picture` too, that makes them of frames as they are in the video, or of frames whose shorter side has
    `decoded` pixels, where it has that as well."""

    name: str
    width: int
    frames: int
    size: tuple[int, int]

    def __call__(self, windows: np.ndarray) -> np.ndarray:
        """uint8 windows (steps, frames, h, w, 3) to float32 (steps, width)."""
        ...

    def card(self) -> dict[str, Any]:
        """What must be the same for two feature vectors to mean the same; see `same_features`."""
        ...


def picture_of(features: Features) -> Callable[[np.ndarray], np.ndarray] | None:
    """What makes the pictures that the features see of whole frames; None if these are only scaled."""
    found: Callable[[np.ndarray], np.ndarray] | None = getattr(features, "picture", None)
    return found


def card_of(features: Features, kind: str = "", weights: str = "") -> dict[str, Any]:
    """The card of features: its fields, and a fingerprint of the weights behind them if there are any."""
    size = list(features.size)
    return {
        "name": kind or features.name,
        "width": features.width,
        "frames": features.frames,
        "size": size,
        "weights": weights,
    }
