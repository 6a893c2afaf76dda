"""What a search by example, or by a sentence, found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedreel.tasks.use.result import FolderResult


@dataclass(frozen=True)
class Hit:
    """A video of the folder, and the cosine of the angle between its vector and the clip's."""

    rank: int  # from 1, the most similar
    similarity: float
    path: str  # below the folder
    label: str  # '' where the folder does not tell
    owner: str
    seconds: float

    @property
    def copy(self) -> str:
        """The name of a copy of it among those of other hits."""
        return f"{self.rank:02d}_{Path(self.path).name}"


@dataclass(frozen=True, kw_only=True)
class Similar(FolderResult):
    """The videos of a folder that are most like the source."""

    folder: Path
    pooling: str
    sentence: str = ""  # what was asked, where that is no clip
    videos: int  # that the clip was compared with
    looked_at: int  # that were decoded: new or changed since the last search
    hits: list[Hit]  # the most similar first

    def lines(self) -> list[str]:
        """The ranking in columns; those of labels and owners only where there are any."""
        columns = {
            "rank": [f"{hit.rank:>4}" for hit in self.hits],
            "similarity": [f"{hit.similarity:>10.4f}" for hit in self.hits],
            "label": [hit.label for hit in self.hits],
            "owner": [hit.owner for hit in self.hits],
            "video": [str(self.folder / hit.path) for hit in self.hits],
        }
        kept = {name: [name, *cells] for name, cells in columns.items() if any(cells)}
        widths = [max(map(len, cells)) for cells in kept.values()]
        rows = zip(*kept.values())
        return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
