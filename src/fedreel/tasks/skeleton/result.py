"""What a client's classifier makes of a recorded motion."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.tasks.use.recognition import Recognition


@dataclass(frozen=True, kw_only=True)
class MotionRecognition(Recognition):
    """The action that a recording shows, among the classes of the client."""

    frames: int
    fps: float | None  # None: the file does not say
    joints: str  # of the model
