"""What a classifier makes of something: a ranking of its classes, of one file or of each file of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedreel.tasks.use.result import FolderResult, Result

Ranking = list[tuple[str, float]]  # classes with their probabilities, the likeliest first

SHARED = ("run", "client", "side", "frames")  # by all files of a folder, as far as they have it


@dataclass(frozen=True, kw_only=True)
class Recognition(Result):
    """The likeliest class, and what else it could be."""

    untold: ClassVar[frozenset[str]] = frozenset({"files", "top"})

    label: str
    confidence: float
    ranking: Ranking  # all classes
    top: int = 5  # classes to show

    def lines(self) -> list[str]:
        """The answer, and below it the likeliest classes."""
        shown = self.ranking[: self.top]
        width = max(len(label) for label, _ in shown)
        head = f"{self.label}  {100 * self.confidence:.0f} %"
        return [head, *(f"  {label:<{width}}  {100 * share:5.1f} %" for label, share in shown)]

    def as_json(self) -> dict[str, Any]:
        ranking = [{"label": label, "probability": share} for label, share in self.ranking]
        return {**super().as_json(), "ranking": ranking}


@dataclass(frozen=True, kw_only=True)
class Album(FolderResult):
    """What a classifier makes of the files of a folder."""

    untold: ClassVar[frozenset[str]] = frozenset({"files", "what", "entries"})

    what: str  # images or videos
    entries: Sequence[Recognition]  # in the order of their paths

    def lines(self) -> list[str]:
        """A line for each file."""
        names, labels = [str(entry.source) for entry in self.entries], [entry.label for entry in self.entries]
        first, second = (max(map(len, texts)) for texts in (names, labels))
        rows = zip(names, labels, self.entries)
        return [f"{name:<{first}}  {label:<{second}}  {100 * entry.confidence:3.0f} %" for name, label, entry in rows]

    def as_json(self) -> dict[str, Any]:
        """What all files share stands once."""
        every = [entry.as_json() for entry in self.entries]
        shared = {name: every[0][name] for name in SHARED if name in every[0]}
        own = [{name: value for name, value in entry.items() if name not in (*SHARED, "notes")} for entry in every]
        return {**super().as_json(), **shared, self.what: own}
