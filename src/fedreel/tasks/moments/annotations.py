"""Which moments of which videos sentences ask for, from any public form, with impossible times put right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from fedreel.errors import DataError
from fedreel.tasks.moments.formats import (
    About,
    Fault,
    Ratings,
    Span,
    bare,
    corpus_of,
    kind_of,
    read_labels,
    read_tables,
    spans,
    split_of,
)

FAR = 0.5  # seconds; a moment that ends this much after its video is more than a matter of rounding
LISTED = 20  # faults that are kept for a report
UNKNOWN_LENGTH = "nobody knows how long"


@dataclass(frozen=True)
class Query:
    """A sentence and the moment it asks for, in seconds: 0 <= start < end <= duration."""

    video: str
    start: float
    end: float
    sentence: str
    duration: float  # of the video
    group: str = ""  # its owner, scene or activity; '' if unknown
    split: str = ""  # train, val, test or ''
    ratings: Ratings = ()  # of the whole video, with the first of the sentence's moments


@dataclass(frozen=True)
class Repairs:
    """How often something was put right or left out. `faults` tells the first of what was left out."""

    clipped: int = 0  # began before the video or ended after it
    far: int = 0  # of these, ended more than half a second after it
    swapped: int = 0  # ended before they began
    dropped: int = 0  # nothing left of them inside the video, or nobody knows how long it is
    malformed: int = 0  # lines that are not of the promised form
    faults: tuple[Fault, ...] = ()

    def __add__(self, other: Repairs) -> Repairs:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Repairs(**{**sums, "faults": sums["faults"][:LISTED]})


def read_annotations(
    path: Path | str, labels: Path | None = None, length_of: Callable[[str], float] | None = None
) -> tuple[list[Query], Repairs]:
    """All queries of a file, or of every file of annotations in a folder, in their order, and what was repaired.

    The form is known by its content: Charades-STA's lines, the JSON of ActivityNet Captions or TACoS, QVHighlights'
    lines of JSON, where a query of several windows becomes one query for each. A video's group, length and split come
    from Charades_v1_*.csv or videos.csv beside the file, activities from `labels` or a label file of ActivityNet in
    the folder, splits otherwise from the file's name. `length_of` gives lengths that are known better than that, or 0.

    Reversed moments are turned round, those beyond the video are cut at its ends, and what is then empty is dropped.
    """
    path = Path(path)
    files, found_labels = _files(path)
    table, faults = read_tables(path if path.is_dir() else path.parent)
    activities = read_labels(labels) if labels else {}
    for file in () if labels else found_labels:
        activities |= read_labels(file)
    queries: list[Query] = []
    total = Repairs(malformed=len(faults), faults=tuple(faults[:LISTED]))
    for file, kind in files:
        reader = _Reader(table, activities, split_of(file), length_of)
        own = [query for span in spans(file, kind) if (query := reader.query(span))]
        if not own:
            raise _nothing(file, reader.repairs)
        queries += own
        total += reader.repairs
    return queries, total


def corpus(path: Path) -> str:
    """The public set that the annotations at a place are of, all of them; '' for any other, or a mixture."""
    found = {corpus_of(file) for file, _ in _files(path)[0]}
    return found.pop() if len(found) == 1 else ""


class _Reader:
    """Spans of one file to queries, with a count of what had to be done."""

    def __init__(
        self,
        table: Mapping[str, About],
        activities: Mapping[str, str],
        split: str,
        length_of: Callable[[str], float] | None,
    ) -> None:
        self.table, self.activities, self.split, self.length_of = table, activities, split, length_of
        self.repairs = Repairs()

    def query(self, span: Span | Fault) -> Query | None:
        if isinstance(span, Fault):
            self.repairs += Repairs(malformed=1, faults=(span,))
            return None
        about = self.table.get(span.video, About("", 0.0, ""))
        better = self.length_of(span.video) if self.length_of else 0.0
        duration = better or span.duration or about.length
        if not duration > 0:
            return self._without(span, f"{UNKNOWN_LENGTH} the video {span.video} is")
        first, last = sorted((span.start, span.end))
        start, end = max(first, 0.0), min(last, duration)
        if start >= end:
            return self._without(span, f"nothing of {span.start:g} to {span.end:g} s lies in {duration:g} s of video")
        self.repairs += Repairs(
            clipped=int((start, end) != (first, last)),
            far=int(last > duration + FAR),
            swapped=int(span.start > span.end),
        )
        group = about.group or self.activities.get(bare(span.video), "")
        return Query(span.video, start, end, span.sentence, duration, group, about.split or self.split, span.ratings)

    def _without(self, span: Span, reason: str) -> Query | None:
        self.repairs += Repairs(dropped=1, faults=(Fault(span.where, reason),))
        return None


def _files(path: Path) -> tuple[list[tuple[Path, str]], list[Path]]:
    """Files of annotations with their kinds, and files of labels."""
    if path.is_dir():
        places = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    else:
        places = [path]
    kinds = [(place, kind_of(place)) for place in places]
    files = [(place, kind) for place, kind in kinds if kind not in ("", "labels")]
    if not files:
        raise DataError(
            "there are no annotated moments here",
            where=str(path),
            expected="lines `VIDEO START END##SENTENCE` in a .txt file, captions with `timestamps` and `sentences` "
            "in a .json file, or queries with `relevant_windows` in a .jsonl file",
            found=", ".join(place.name for place in places[:5]) or "an empty folder",
        )
    beside = path.parent.glob("*.json") if path.is_file() else ()
    labels = [place for place, kind in kinds if kind == "labels"] or [p for p in beside if kind_of(p) == "labels"]
    return files, sorted(labels)


def _nothing(path: Path, repairs: Repairs) -> DataError:
    lengths = any(fault.reason.startswith(UNKNOWN_LENGTH) for fault in repairs.faults)
    return DataError(
        "no moment of this file can be used",
        where=str(path),
        found="; ".join(f"{fault.where}: {fault.reason}" for fault in repairs.faults[:3]),
        hint="put videos.csv or Charades_v1_*.csv with columns id and length beside it" if lengths else "",
    )
