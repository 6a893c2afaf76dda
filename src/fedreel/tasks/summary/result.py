"""A summary of a video: the shots, those that were chosen, and the scores behind the choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedreel.machine.words import clock
from fedreel.tasks.use.result import Result


@dataclass(frozen=True)
class Shot:
    """A stretch of the video: first and last frame, seconds from the video's beginning, mean score."""

    first: int
    last: int
    start: float
    end: float
    score: float
    chosen: bool

    @property
    def middle(self) -> int:
        """The frame that stands for it in pictures."""
        return (self.first + self.last) // 2


@dataclass(frozen=True, kw_only=True)
class Summary(Result):
    """What was found of a video, and which shots of it make the summary."""

    community: str  # the model that gave the scores; `global` is everybody's
    features: str
    shots_by: str  # how shots were found: cuts, kts or transnet
    ratio: float
    fps: float  # frames a second, on average
    n_frames: int
    picks: list[int]  # the middle frame of each step
    scores: list[float]  # of the steps
    shots: list[Shot]

    @property
    def chosen(self) -> list[Shot]:
        return [shot for shot in self.shots if shot.chosen]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First and last frames of the chosen shots."""
        return [(shot.first, shot.last) for shot in self.chosen]

    @property
    def seconds(self) -> float:
        """How long the summary is."""
        return sum(shot.end - shot.start for shot in self.chosen)

    def lines(self) -> list[str]:
        head = f"{self.seconds:.1f} s in {len(self.chosen)} of {len(self.shots)} shots, by the model {self.community}"
        return [head, *(f"  {clock(shot.start)} - {clock(shot.end)}  {shot.score:.3f}" for shot in self.chosen)]

    def as_json(self) -> dict[str, Any]:
        """`chosen` are the numbers of the chosen shots."""
        return {**super().as_json(), "chosen": [i for i, shot in enumerate(self.shots) if shot.chosen]}
