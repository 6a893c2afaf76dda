"""Many independent drawing jobs on all cores, and the small text files beside their results."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


class Jobs:
    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or os.cpu_count() or 1
    def run(self, function, jobs) -> None:
        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(function, jobs))

def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table with one header line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows(rows)
