"""Moments that were found in a video."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.machine.words import clock
from fedreel.tasks.use.result import Result


@dataclass(frozen=True)
class Moment:
    """A stretch of a video, in seconds from its beginning, and how likely the model finds it."""

    start: float
    end: float
    score: float  # 0 to 1, what the model orders spans by: see docs/find.md
    rank: int  # from 1, the best
    first: int  # frames of the clip
    last: int

    @property
    def middle(self) -> int:
        """The frame that stands for it in pictures."""
        return (self.first + self.last) // 2

    @property
    def clip(self) -> str:
        """The name of its file."""
        return f"{self.rank:02d}_{self.start:.1f}-{self.end:.1f}s.mp4"


@dataclass(frozen=True, kw_only=True)
class Finding(Result):
    """Where in a video a model finds what a sentence says."""

    sentence: str
    features: str
    seconds: float  # of the video
    moments: list[Moment]  # the likeliest first
    inside: list[float]  # over equal windows of the video, the probability to be inside the moment
    unknown: list[str]  # words of the sentence that the model does not know

    def lines(self) -> list[str]:
        return [f"{m.rank:>2}  {clock(m.start)} - {clock(m.end)}  {100 * m.score:5.1f} %" for m in self.moments]
