"""What was found out about a backbone."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.tasks.use.result import FolderResult


@dataclass(frozen=True, kw_only=True)
class Evaluation(FolderResult):
    """What a backbone is worth on labelled videos. The source is these; the run is what was given as the model."""

    name: str  # of the labelled set
    classes: int
    train: int  # videos to learn from, or to be found
    test: int  # videos that ask
    seed: int
    metrics: dict[str, float]  # shares of the test videos, by the names that the tables have

    def lines(self) -> list[str]:
        """The set, then a line for each number, in percent."""
        width = max(map(len, self.metrics))
        head = f"{self.name}: {self.train:,} videos for training, {self.test:,} for testing, {self.classes:,} classes"
        return [head, *(f"  {name:<{width}}  {100 * share:6.2f} %" for name, share in self.metrics.items())]
