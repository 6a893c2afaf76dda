"""Cells of sweeps, several at once in processes of their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

from fedreel.errors import NoMemory
from fedreel.machine.processes import cores, in_processes
from fedreel.reproduce.cells import Cell
from fedreel.reproduce.kept import Kept

_log = logging.getLogger(__name__)


def each_done(cells: Sequence[Cell], device: str, jobs: int, kept: Kept | None) -> Iterator[Cell]:
    """Cells as they get done; several at once in processes of their own. Each is kept at once: what ends this process
    may leave no time for it. Those for which memory did not suffice go on when the others are done, half as many at
    once."""
    if kept:
        kept.use(cells)
    try:
        left = [*cells]
        while left:
            at_once = max(1, min(jobs, len(left)))
            share = partial(_share_cores, max(1, cores() // at_once))
            again = []
            attempt = partial(_attempt, device=device, quiet=jobs > 1, alone=at_once == 1)
            for number, ended in in_processes(attempt, left, at_once, share):
                if not ended:
                    again.append(left[number])
                    continue
                if kept:
                    kept.add([left[number]])
                yield left[number]
            if again:
                jobs = max(1, at_once // 2)
                short = "there was too little memory for %d of them beside %d others: they go on, %d at once"
                _log.warning(short, len(again), at_once - 1, jobs)
            left = again
    finally:
        if kept:
            kept.add(cells)


def _attempt(cell: Cell, device: str, quiet: bool, alone: bool) -> bool:
    """Run a cell, unless memory does not suffice: false, if others are run beside it."""
    import torch

    from fedreel.machine.device import give_back

    try:
        cell.run(device, quiet)
        return True
    except (NoMemory, torch.OutOfMemoryError):
        if alone:
            raise
        return False
    finally:
        give_back()


def _share_cores(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
