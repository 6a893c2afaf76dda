"""The folders that the pages may show, and nothing beside them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedreel.errors import DataError, RunError

RECORDS = ("recipe.toml", "run.json", "summary.json", "metrics.jsonl", "ledger.jsonl", "now.json")  # that pages read
OWN = ".ui"  # in the folder of the runs: the queue, uploads, results


@dataclass(frozen=True)
class Places:
    """Whatever a page asks for is looked up here. A name that leads outside, by dots or by a link, is not found."""

    runs: Path
    data: tuple[Path, ...] = ()
    server: Path | None = None

    @property
    def own(self) -> Path:
        return self.runs / OWN

    @property
    def uploads(self) -> Path:
        return self.own / "uploads"

    @property
    def results(self) -> Path:
        return self.own / "results"

    def roots(self) -> dict[str, Path]:
        """The folders whose files may be shown, by the names that addresses have for them."""
        given = {f"data{n}": folder for n, folder in enumerate(self.data, 1)}
        return {**given, "uploads": self.uploads, "results": self.results}

    def run(self, name: str) -> Path:
        """A run by its name below the folder of the runs."""
        found = inside(self.runs, name)
        if found is None or not (found / "recipe.toml").is_file() or leads_out(found, self.runs):
            raise RunError("there is no such run", where=name, expected=f"a run directory in {self.runs}")
        return found

    def file(self, root: str, name: str) -> Path:
        """A file of one of the roots."""
        folder = self.roots().get(root)
        found = inside(folder, name) if folder else None
        if found is None or not found.is_file():
            raise DataError("there is no such file here", where=f"{root}/{name}")
        return found

    def folder(self, root: str, name: str = "") -> Path:
        """A folder of one of the roots, or the root itself."""
        folder = self.roots().get(root)
        found = folder if folder and not name else inside(folder, name) if folder else None
        if found is None or not found.is_dir():
            raise DataError("there is no such folder here", where=f"{root}/{name}")
        return found

    def allows(self, path: Path) -> bool:
        """Whether a path lies in one of the folders, with all links followed."""
        place = path.expanduser().resolve()
        return any(place.is_relative_to(root.resolve()) for root in (self.runs, *self.data))


def inside(root: Path, name: str) -> Path | None:
    """`name` below `root`; None if it leads elsewhere, is hidden, or cannot be a path at all."""
    parts = name.split("/")
    if (
        not name
        or "\0" in name
        or not speakable(name)
        or any(part in ("", "..") or part.startswith(".") for part in parts)
    ):
        return None
    try:
        found = root.joinpath(*parts)
        return found if found.resolve().is_relative_to(root.resolve()) else None
    except (OSError, ValueError, RuntimeError):
        return None


def speakable(name: str) -> bool:
    """Whether a name can be part of an address: names of files may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def leads_out(run: Path, root: Path) -> bool:
    """Whether a record of a run is a link to a file elsewhere."""
    links = [run / name for name in RECORDS if os.path.islink(run / name)]
    return any(not link.resolve().is_relative_to(root.resolve()) for link in links)
