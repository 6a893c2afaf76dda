"""What verbs give back: an answer, what to know about it, and the files that were written."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from fedreel.data.shards import Broken
    from fedreel.tasks.use.trust import Trust

NAMED = 20  # skipped files, and notes, that a terminal gets to see


@dataclass(frozen=True, kw_only=True)
class Result(ABC):
    """What every verb's result has."""

    untold: ClassVar[frozenset[str]] = frozenset({"files"})  # what is not in the JSON

    source: Path  # what was given
    run: Path  # whose model answered
    client: str = ""  # whose part of the model was used; '' where nobody was named
    trust: Trust | None = None  # how far the answer is to be trusted; None where no model answers
    notes: list[str] = field(default_factory=list)  # what a user should know
    files: list[Path] = field(default_factory=list)  # that were written

    @abstractmethod
    def lines(self) -> list[str]:
        """The answer, as a terminal shows it."""

    def remarks(self) -> list[str]:
        """What a terminal shows beside the answer."""
        return [f"note: {note}" for note in self.notes]

    def as_json(self) -> dict[str, Any]:
        """All that was found, in plain values."""
        untold = self.untold if self.trust else {*self.untold, "trust"}
        told = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in untold}
        return json.loads(json.dumps(told, default=_plain_value))


@dataclass(frozen=True, kw_only=True)
class FolderResult(Result):
    """Of a verb that looks at the files of a folder."""

    skipped: list[Broken] = field(default_factory=list)  # files that cannot be read, and why

    def remarks(self) -> list[str]:
        skipped = [f"skipped {broken.path}: {broken.reason}" for broken in self.skipped]
        return [*_first(skipped, "skipped files"), *_first(super().remarks(), "notes")]


def _first(texts: list[str], what: str) -> list[str]:
    more = len(texts) - NAMED
    return [*texts[:NAMED], f"{more:,} more {what}: --json lists them"] if more > 0 else texts


def _plain_value(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
