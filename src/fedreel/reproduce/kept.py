"""Finished cells as lines of one small text file, so that a sweep goes on from what was run elsewhere or long ago."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreel.errors import DataError
from fedreel.machine.files import write_atomic
from fedreel.machine.records import Records
from fedreel.playground.sizes import VERSION
from fedreel.reproduce.cells import DERIVED, DIVERGED, Cell, derived_of, seconds_of, why_diverged
from fedreel.runs.reading import read_summary

Line = dict[
    str, Any
]  # of a cell: its key as `cell`, then `metrics`, `derived` and perhaps the `seconds` that it took, or
# why it `diverged`


@dataclass(frozen=True)
class Kept:
    """The file: a line that says which data the cells were run on, then a line a cell, by key."""

    path: Path
    of: Line
    known: dict[str, Line]

    def use(self, cells: Sequence[Cell]) -> None:
        """Give cells that were not begun here what is known of them. Such a folder holds no run: one that lacks what is
        asked for now is cleared and run."""
        for cell in cells:
            line = self.line(cell)
            if _without_run(cell.folder) and not cell.finished():
                shutil.rmtree(cell.folder)
            if line and not cell.folder.exists():
                _lay_out(cell.folder, line)

    def line(self, cell: Cell) -> Line:
        """What the file has of a cell, if that is all that is asked of it; else nothing."""
        line = self.known.get(cell.key, {})
        enough = bool(line) and ("diverged" in line or cell.derived_by(line["derived"]))
        return line if enough else {}

    def add(self, cells: Sequence[Cell]) -> None:
        """Write the file anew, with those of the cells that are finished, if there are any."""
        finished = [cell for cell in cells if cell.finished()]
        if not finished:
            return
        for cell in finished:
            self.known[cell.key] = line_of(cell, self.known.get(cell.key, {}))
        lines = [self.of, *(self.known[key] for key in sorted(self.known))]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, "".join(json.dumps(line) + "\n" for line in lines))


def known_of(cell: Cell, kept: Kept | None) -> Line:
    """What is known of a finished cell, by its folder or else by the file; nothing of one that is to be run."""
    if cell.finished():
        return line_of(cell)
    return kept.line(cell) if kept else {}


def open_kept(path: Path, data: Path | None) -> Kept:
    """The file's cells, none if it is new; they must be of the same data."""
    of = {"data": data.name, "digest": _digest(data)} if data else {"data": "playground", "version": VERSION}
    if not path.exists():
        return Kept(path, of, {})
    records = Records(path)
    first, *lines = [*records] or [{}]
    if records.bad or records.torn:
        where = f"{path}, line {records.bad[0] if records.bad else records.number}"
        raise DataError("a line of this file is not JSON", where=where, hint="take the line out: its cell is run again")
    if not _same_data(first, of):
        raise DataError(
            "the cells in this file are of other data",
            where=str(path),
            expected=json.dumps(of),
            found=json.dumps(first),
            hint="name another file with --cells; it is made if it is not there",
        )
    for line in lines:
        if not isinstance(line.get("cell"), str) or not ("diverged" in line or {"metrics", "derived"} <= line.keys()):
            raise DataError(
                "a line of this file is not a finished cell",
                where=str(path),
                expected='{"cell": ..., "metrics": {...}, "derived": {...}} or {"cell": ..., "diverged": ...}',
                found=json.dumps(line)[:80],
            )
    return Kept(path, first, {line["cell"]: line for line in lines})


def line_of(cell: Cell, before: Line | None = None) -> Line:
    """What the folder of a cell says; what it does not say is as it was before."""
    before = before or {}
    reason = why_diverged(cell.folder)
    if reason:
        return {"cell": cell.key, "diverged": reason}
    taken = seconds_of(cell.folder)
    seconds = before.get("seconds") if taken is None else taken
    return {
        "cell": cell.key,
        "metrics": read_summary(cell.folder).get("metrics", {}),
        "derived": {**before.get("derived", {}), **derived_of(cell.folder)},
        **({} if seconds is None else {"seconds": seconds}),
    }


def _lay_out(folder: Path, line: Line) -> None:
    folder.mkdir(parents=True)
    if "diverged" in line:
        write_atomic(folder / DIVERGED, json.dumps({"reason": line["diverged"]}) + "\n", sync=False)
        return
    write_atomic(folder / DERIVED, json.dumps(line["derived"]) + "\n", sync=False)
    summary = {"metrics": line["metrics"], "complete": True, "kept": True}
    write_atomic(folder / "summary.json", json.dumps(summary) + "\n", sync=False)


def _without_run(folder: Path) -> bool:
    return bool(read_summary(folder).get("kept"))


def _same_data(one: Line, other: Line) -> bool:
    """Whether both say the same data, which may lie under another name now."""
    return one == other or ("digest" in one and one["digest"] == other.get("digest"))


def _digest(data: Path) -> str:
    """Of a file, or of all files in a folder and their names."""
    found = hashlib.sha256()
    for path in sorted(p for p in data.rglob("*") if p.is_file()) if data.is_dir() else [data]:
        found.update(f"{path.relative_to(data) if path != data else ''}\n{path.stat().st_size}\n".encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()[:16]
