"""Many independent drawing jobs on all cores, and the small text files beside their results."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedreel.data.playground.sizes import Size
from fedreel.errors import DataError

FEW = 16  # jobs that are done before a second Python has started


@dataclass(frozen=True)
class Jobs:
    """Where the drawing of one part goes and how many processes do it.

    A job is a pure function of (seed, size, number), so who does it does not matter. The helpers are plain
    `python -m` processes, each with its share of the numbers: unlike multiprocessing's they never run the caller's
    script again, so a script needs no `if __name__ == "__main__"` to make a world.
    """

    part: str
    out: Path
    seed: int
    size: Size
    workers: int

    def run(self, total: int) -> None:
        """Call the part's `job(out, seed, size, number)` for every number below `total`."""
        workers = self.workers if sys.executable and total >= FEW else 1
        helpers = [self._start(share, workers, total) for share in range(1, workers)]
        try:
            self.share(0, workers, total)
            for helper in helpers:
                _, complaint = helper.communicate()
                if helper.returncode:
                    raise DataError(
                        f"a helper process failed while making '{self.part}'",
                        where=str(self.out),
                        found=complaint.strip() or f"exit status {helper.returncode}",
                    )
        finally:
            for helper in helpers:
                if helper.poll() is None:  # this process failed or was interrupted
                    helper.kill()
                    helper.communicate()

    def share(self, first: int, step: int, total: int) -> None:
        """Every step-th job from `first` on, in this process."""
        job = importlib.import_module(f"fedreel.data.playground.{self.part}").job
        for number in range(first, total, step):
            job(self.out, self.seed, self.size, number)

    def _start(self, first: int, step: int, total: int) -> subprocess.Popen[str]:
        order = {**asdict(self), "out": str(self.out), "share": [first, step, total]}
        command = [sys.executable, "-m", "fedreel.data.playground.work", json.dumps(order)]
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.Popen(command, env=paths, stderr=subprocess.PIPE, text=True)


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table with one header line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows(rows)


def _help(order: dict[str, Any]) -> None:
    first, step, total = order.pop("share")
    size, out = Size(**order.pop("size")), Path(order.pop("out"))
    Jobs(out=out, size=size, **order).share(first, step, total)


if __name__ == "__main__":
    _help(json.loads(sys.argv[1]))
