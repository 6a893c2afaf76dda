"""The cells of a table: what is run once, in a folder of its own, and what a finished one says."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedreel.config import Recipe, load_recipe, stated
from fedreel.errors import Diverged
from fedreel.machine.files import write_atomic
from fedreel.reproduce.spec import Metrics
from fedreel.runs.reading import read_summary

DERIVED = "derived.json"  # what was read off a finished cell, by function: several tables may share the cell
DIVERGED = "diverged.json"  # of a cell that came to nothing: why
TAKEN = "taken.json"  # how many seconds it took, with what was read off it


@dataclass(frozen=True)
class Cell:
    """A row with a seed, and what is read off it."""

    name: str
    seed: int
    recipe: str
    settings: Mapping[str, Any]
    folder: Path
    key: str  # its folder's name, but the same wherever the data lie
    compute: Callable[[Recipe], Metrics] | None
    derive: tuple[Callable[[Path], Metrics], ...]
    needs: Callable[[], object] | None = None  # raises where a package is missing

    def check_needs(self) -> None:
        """Raise if it is yet to be run and cannot be."""
        if self.needs is not None and not self.finished():
            self.needs()

    def run(self, device: str, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Run it to its end; training that diverges is an end, too. How long it takes goes by this clock."""
        if self.finished():
            return
        begin, before = clock(), seconds_of(self.folder) or 0.0
        try:
            self._run(device, quiet)
        except Diverged as error:
            write_atomic(self.folder / DIVERGED, json.dumps({"reason": error.problem}) + "\n")
        finally:
            if self.folder.exists():
                taken = round(before + clock() - begin, 1)
                write_atomic(self.folder / TAKEN, json.dumps({"seconds": taken}) + "\n")

    def finished(self) -> bool:
        """Whether nothing of it is left to do."""
        if why_diverged(self.folder):
            return True
        return bool(read_summary(self.folder).get("complete")) and self.derived_by(derived_of(self.folder))

    def derived_by(self, found: Mapping[str, Metrics]) -> bool:
        """Whether these have what every function reads off it; what was computed is not read off."""
        return self.compute is not None or all(function.__name__ in found for function in self.derive)

    def _run(self, device: str, quiet: bool) -> None:
        from fedreel.api import run
        from fedreel.machine.device import give_back

        if self.compute is not None:
            _compute(self.compute, load_recipe(self.recipe, {**self.settings, "seed": self.seed}), self.folder)
            return
        if not read_summary(self.folder).get("complete"):
            started = (self.folder / "recipe.toml").exists()
            run(self.recipe, self.folder, set=self.settings, seed=self.seed, device=device, resume=started, quiet=quiet)
            give_back()
        found = derived_of(self.folder)
        for function in self.derive:
            if function.__name__ not in found:
                found[function.__name__] = function(self.folder)
                give_back()
                write_atomic(self.folder / DERIVED, json.dumps(found) + "\n")


def cell_names(recipe: str, settings: Mapping[str, Any], row: str, seed: int, data: Path | None) -> tuple[str, str]:
    """A cell's folder and key. Named after what is run, so that a changed row is run anew beside the old, and tables
    can share cells. A setting at its default plays no part: a new one renames nothing."""
    what = json.dumps(stated(load_recipe(recipe, settings)), sort_keys=True)
    anywhere = what.replace(json.dumps(str(data.resolve()))[1:-1], "DATA") if data else what
    slug = "".join(c if c.isalnum() else "-" for c in row.lower())
    marks = [hashlib.sha256(text.encode()).hexdigest()[:8] for text in (what, anywhere)]
    return f"{slug}-{marks[0]}-seed{seed}", f"{slug}-{marks[1]}-seed{seed}"


def merged(cells: Iterable[Cell]) -> list[Cell]:
    """Each that is run once, with all that is to be read off it."""
    found: dict[Path, Cell] = {}
    for cell in cells:
        also = found.get(cell.folder, cell)
        found[cell.folder] = replace(cell, derive=tuple(dict.fromkeys((*also.derive, *cell.derive))))
    return [*found.values()]


def metrics_of(folder: Path, derive: Sequence[Callable[[Path], Metrics]] = ()) -> Metrics:
    """What a finished cell says, and what these functions read off it; nothing of one that is not finished."""
    try:
        found: Metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    except (OSError, ValueError):
        return {}
    read = derived_of(folder)
    for function in derive:
        found |= read.get(function.__name__, {})
    return found


def derived_of(folder: Path) -> dict[str, Metrics]:
    try:
        found: dict[str, Metrics] = json.loads((folder / DERIVED).read_text())
    except (OSError, ValueError):
        return {}
    return found


def seconds_of(folder: Path) -> float | None:
    """How long a cell took, over all times that it was gone on with; None if nobody measured it."""
    try:
        return float(json.loads((folder / TAKEN).read_text())["seconds"])
    except (OSError, ValueError):
        return None


def why_diverged(folder: Path) -> str:
    """Why a cell came to nothing; empty for all others."""
    try:
        return str(json.loads((folder / DIVERGED).read_text())["reason"])
    except (OSError, ValueError):
        return ""


def _compute(function: Callable[[Recipe], Metrics], recipe: Recipe, folder: Path) -> None:
    """A cell that needs no run; its summary holds the metrics only."""
    if (folder / "summary.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "summary.json", json.dumps({"metrics": function(recipe), "complete": True}) + "\n")
