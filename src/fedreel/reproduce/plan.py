"""What of a sweep is finished and what is left, before anything is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from fedreel.reproduce import Sweep, wanted
from fedreel.reproduce.cells import Cell
from fedreel.reproduce.equal_time import model_of
from fedreel.reproduce.kept import Kept, Line, known_of, open_kept
from fedreel.reproduce.spec import Row
from fedreel.reproduce.work import Key, Work, total, work_of
from fedreel.reproduce.work import by_table as work_by_table

COLUMNS = ("table", "rows", "tries done", "tries left", "cells done", "cells left", "hours left")
ROW_COLUMNS = ("table", "row", *COLUMNS[2:])
KINDS = ("timings", "tries", "cells")
NOTE = (
    "tries: runs by which settings are chosen, or by which rows are timed that are to be as long as others. While some"
    " tries of a row are left, none of its cells counts as done: it has no settings yet. What several tables show"
    " counts once in `all`. hours left: each as long as finished ones of its row, or else of its table, took; ~: for"
    " some, what is expected of a GPU; ? where neither is known"
)


@dataclass(frozen=True)
class Part:
    """A try or a cell: what it is known by, and what is known of it, which is nothing if it is to be run."""

    name: tuple[str, ...]
    line: Line


@dataclass(frozen=True)
class Planned:
    """A row, or several of a table."""

    table: str
    label: str
    timings: tuple[Part, ...]
    tries: tuple[Part, ...]
    cells: tuple[Part, ...]
    work: Mapping[Key, Work] = field(default_factory=dict)  # of what is to be run, where that is known

    @property
    def left(self) -> int:
        return sum(not part.line for kind in KINDS for part in getattr(self, kind))


def plan(
    system: str,
    *tables: str,
    scale: str = "smoke",
    data: Path | None = None,
    out: Path,
    rows: str = "",
    seeds: int | None = None,
    set: Mapping[str, Any] | None = None,
    cells: Path | None = None,
) -> list[Planned]:
    """Every row of the tables as `reproduce` would run them with the same arguments; nothing is run or written."""
    kept = open_kept(cells, data) if cells else None
    sweeps = wanted(system, *tables, scale=scale, data=data, out=out, rows=rows, seeds=seeds, over=set or {})
    return [planned for sweep in sweeps for planned in _rows(sweep, kept)]


def by_table(rows: Sequence[Planned], jobs: int = 1) -> list[list[str]]:
    """A line of `COLUMNS` for each table, and one for all if there are several; hours with so many at once."""
    return [
        [name, str(len(group)), *_counts(_merged(group)), _hours(group, rows, jobs)]
        for name, group in _groups(rows).items()
    ]


def by_work(rows: Sequence[Planned]) -> list[list[str]]:
    """A line for each table of which it is known, and one for all: see `fedreel.reproduce.work`."""
    return work_by_table({name: [row.work for row in group] for name, group in _groups(rows).items()})


def _groups(rows: Sequence[Planned]) -> dict[str, list[Planned]]:
    groups = {name: [row for row in rows if row.table == name] for name in dict.fromkeys(row.table for row in rows)}
    return groups | ({"all": [*rows]} if len(groups) > 1 else {})


def by_row(rows: Sequence[Planned], jobs: int = 1) -> list[list[str]]:
    """A line of `ROW_COLUMNS` for each row of which something is left."""
    return [[row.table, row.label, *_counts(row), _hours([row], rows, jobs)] for row in rows if row.left]


def _rows(sweep: Sweep, kept: Kept | None) -> Iterator[Planned]:
    known = partial(known_of, kept=kept)
    chosen = sweep.in_time(known).choose(known)
    for row, settled in zip(sweep.rows, chosen.rows):
        wanted = _timings(sweep, row), sweep.tries(row, known)
        timings, tries = ([Part((cell.key,), known(cell)) for cell in cells] for cells in wanted)
        if all(part.line for part in (*timings, *tries)):
            made = [chosen.cell(settled, seed) for seed in sweep.size.seeds]
            cells = [Part((cell.key,), known(cell)) for cell in made]
        else:  # known by what it is before anything is chosen, and by what that comes from: of the same comes the same
            rule, made = sweep.size.choose, [sweep.cell(row, seed) for seed in sweep.size.seeds]
            by = [key for part in (*timings, *tries) for key in part.name]
            by += [rule.metric, *(function.__name__ for function in rule.derive)] if rule else []
            cells = [Part((*by, cell.key), {}) for cell in made]
        work = {
            (kind, part.name, what): one
            for kind, parts, of in (("tries", tries, wanted[1]), ("cells", cells, made))
            for part, cell in zip(parts, of)
            if not part.line
            for what, one in work_of(cell, sweep.spec, sweep.data).items()
        }
        yield Planned(sweep.table, row.label, tuple(timings), tuple(tries), tuple(cells), work)


def _timings(sweep: Sweep, row: Row) -> list[Cell]:
    """What says how many rounds the row has: its own time, and that of the row that it is to be as long as."""
    if not row.as_long_as or not sweep.to_time():
        return []
    return [sweep.timing(one) for one in (row, model_of(row, sweep.spec.rows_for(sweep.data)))]


def _merged(rows: Sequence[Planned]) -> Planned:
    """All rows as one, in which nothing is there twice; what one of them lacks is to be run."""
    parts: dict[str, dict[tuple[str, ...], Part]] = {kind: {} for kind in KINDS}
    for row in rows:
        for kind, found in parts.items():
            for part in getattr(row, kind):
                if part.name not in found or not part.line:
                    found[part.name] = part
    timings, tries, cells = (tuple(found.values()) for found in parts.values())
    return Planned("", "", timings, tries, cells)


def _counts(row: Planned) -> list[str]:
    found = []
    for parts in ((*row.timings, *row.tries), row.cells):
        done = sum(bool(part.line) for part in parts)
        found += [str(done), str(len(parts) - done)]
    return found


def _hours(rows: Sequence[Planned], every: Sequence[Planned], jobs: int) -> str:
    """What is left of these rows: each part as long as finished ones of its row or else of its table, with so many at
    once; or else as it is expected to be, of a GPU that several share."""
    left: dict[tuple[str, ...], float | None] = {}
    expected: dict[Key, Work] = {}
    for row in rows:
        table = [other for other in every if other.table == row.table]
        for kind in KINDS:
            parts: Sequence[Part] = getattr(row, kind)
            own, all_of = _seconds(parts), _seconds([part for other in table for part in getattr(other, kind)])
            mean = fmean(own or all_of) if own or all_of else None
            for part in parts:
                work = {key: one for key, one in row.work.items() if key[:2] == (kind, part.name)}
                if mean is None and work:
                    expected |= work
                elif not part.line:
                    left[(kind, *part.name)] = mean
    if any(seconds is None for seconds in left.values()):
        return "?"
    hours = (sum(s for s in left.values() if s is not None) / max(1, jobs) + total(expected.values()).seconds) / 3600
    return f"{'~' if expected else ''}{hours:.1f}"


def _seconds(parts: Sequence[Part]) -> list[float]:
    return [part.line["seconds"] for part in parts if "seconds" in part.line]
