"""Cells of sweeps, several at once in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from fedreel.machine.processes import cores, in_processes
from fedreel.reproduce.cells import Cell
from fedreel.reproduce.kept import Kept


def each_done(cells: Sequence[Cell], device: str, jobs: int, kept: Kept | None) -> Iterator[Cell]:
    """Cells as they get done; several at once in processes of their own. Each is kept at once: what ends this process
    may leave no time for it."""
    if kept:
        kept.use(cells)
    jobs = max(1, jobs)
    share = partial(_share_cores, max(1, cores() // jobs))
    try:
        for number, _ in in_processes(partial(Cell.run, device=device, quiet=jobs > 1), cells, jobs, share):
            if kept:
                kept.add([cells[number]])
            yield cells[number]
    finally:
        if kept:
            kept.add(cells)


def _share_cores(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
