"""Many independent drawing jobs on all cores, and the small text files beside their results."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedreel.machine.processes import in_processes
from fedreel.playground.sizes import Size
from fedreel.systems import systems

FEW = 16  # jobs that are done before a second Python has started


def parts() -> dict[str, str]:
    """Parts of the world, as tasks declare them, and the modules that write them."""
    return {part: module for system in systems() for part, module in system.playground.items()}


@dataclass(frozen=True)
class Jobs:
    """Where the drawing of one part goes and how many processes do it. A job is a pure function of (seed, size,
    number), so who does it does not matter."""

    part: str
    out: Path
    seed: int
    size: Size
    workers: int

    def run(self, total: int) -> None:
        """Call the part's `job(out, seed, size, number)` for every number below `total`."""
        workers = self.workers if total >= FEW else 1
        shares = [range(first, total, workers) for first in range(workers)]
        for _ in in_processes(self.share, shares, workers):
            pass

    def share(self, numbers: Iterable[int]) -> None:
        """Some of the jobs, in this process."""
        job = importlib.import_module(parts()[self.part]).job
        for number in numbers:
            job(self.out, self.seed, self.size, number)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table with one header line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows(rows)
