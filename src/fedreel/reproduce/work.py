"""What is left of a sweep in samples that go through networks, and the seconds that are expected of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from fedreel.config import load_recipe
from fedreel.reproduce.cells import Cell
from fedreel.reproduce.spec import Table

RUN = "run"  # the run itself, beside what is read off it
COLUMNS = ("table", "trained", "at the server", "fine-tuned", "looked at", "s tries", "s runs", "s read off", "s")
NOTE = (
    "Thousands of samples that are left: learned from (trained, at the server, fine-tuned: forward and backward), or"
    " looked at only. s: seconds of one GPU that are expected of them, with several cells at once. A cell that several"
    " tables show counts once in `all`"
)

Key = tuple[str, tuple[str, ...], str]  # a kind (tries, cells), what one of them is known by, and what is done for it


@dataclass(frozen=True)
class Work:
    """Samples, and the seconds that they are expected to take on a GPU that several cells share."""

    trained: float = 0.0
    server: float = 0.0
    tuned: float = 0.0
    seen: float = 0.0  # forward only
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def work_of(cell: Cell, spec: Table, data: Path | None) -> dict[str, Work]:
    """Of its run and of all that is read off it; nothing where the table does not say."""
    if spec.work is None or data is None or cell.compute is not None:
        return {}
    known = spec.work(load_recipe(cell.recipe, {**cell.settings, "seed": cell.seed}), data)
    return {what: known.get(what, Work()) for what in (RUN, *(function.__name__ for function in cell.derive))}


def by_table(groups: Mapping[str, Sequence[Mapping[Key, Work]]]) -> list[list[str]]:
    """A line of `COLUMNS` for each group of rows, in which nothing counts twice."""
    lines = []
    for name, rows in groups.items():
        work = {key: one for row in rows for key, one in row.items()}
        if not work:
            continue
        whole = total(work.values())
        tries = total(one for (kind, *_), one in work.items() if kind == "tries")
        runs = total(one for (kind, _, what), one in work.items() if kind != "tries" and what == RUN)
        samples = [f"{value / 1e3:,.0f}" for value in (whole.trained, whole.server, whole.tuned, whole.seen)]
        seconds = (tries.seconds, runs.seconds, whole.seconds - tries.seconds - runs.seconds, whole.seconds)
        lines.append([name, *samples, *(f"{value:,.0f}" for value in seconds)])
    return lines


def total(work: Iterable[Work]) -> Work:
    return sum(work, Work())
