"""Moments that were found in a video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedreel.machine.words import clock
from fedreel.tasks.use.result import Result

Scale = Literal["probability", "likeness"]


@dataclass(frozen=True)
class Moment:
    """A stretch of a video, in seconds from its beginning, and how well it fits."""

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
    moments: list[Moment]  # the best first
    inside: list[float]  # over equal windows of the video, the probability to be inside the moment, or the likeness
    unknown: list[str]  # words of the sentence that the model does not know
    scale: Scale = "probability"  # of the scores; likeness: the cosine between what is seen and the sentence, in words

    def lines(self) -> list[str]:
        likely = self.scale == "probability"
        scores = [f"{100 * m.score:5.1f} %" if likely else self.in_words(m) for m in self.moments]
        return [f"{m.rank:>2}  {clock(m.start)} - {clock(m.end)}  {score}" for m, score in zip(self.moments, scores)]

    def in_words(self, moment: Moment) -> str:
        """Its score. A probability is told to a tenth of a percent, and what is less is not nothing."""
        if self.scale == "likeness":
            return f"likeness {moment.score:.2f}"
        return "score under 0.1 %" if 0 < moment.score < 0.0005 else f"score {100 * moment.score:.1f} %"
