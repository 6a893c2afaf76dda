"""Cells of sweeps, several at once: in processes of their own, or the seeds of a row and the rates that are tried for
it together in one."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial

from fedreel.config import load_recipe
from fedreel.errors import NoMemory
from fedreel.machine.processes import cores, in_processes
from fedreel.reproduce.cells import Cell
from fedreel.reproduce.kept import Kept

RATE = "train.lr"  # each client of a stacked step may have its own

_log = logging.getLogger(__name__)


class End(Enum):
    """What came of an attempt to run a cell."""

    DONE = "done"
    NO_MEMORY = "memory did not suffice"
    APART = "not begun: its engine does not train clients of several cells together"


def each_done(
    cells: Sequence[Cell], device: str, jobs: int, kept: Kept | None, together: bool = False
) -> Iterator[Cell]:
    """Cells as they get done; several at once in processes of their own, or those that differ in seed or rate alone
    `together` in one. Each is kept at once: what ends this process may leave no time for it. Those for which memory did
    not suffice go on when the others are done, each by itself and half as many at once."""
    if kept:
        kept.use(cells)
    for cell in cells:
        cell.check_needs()
    gc.collect()
    gc.freeze()  # after each run only what runs leave is looked through for what can go, not all modules
    try:
        left = alike_together(cells, device) if together else [(cell,) for cell in cells]
        while left:
            at_once = max(1, min(jobs, len(left)))
            share = partial(_share_cores, max(1, cores() // at_once))
            again: dict[End, list[tuple[Cell, ...]]] = {End.NO_MEMORY: [], End.APART: []}
            attempt = partial(_attempt, device=device, quiet=jobs > 1, alone=at_once == 1)
            for number, ends in in_processes(attempt, left, at_once, share):
                for cell, end in zip(left[number], ends):
                    if end is not End.DONE:
                        again[end].append((cell,))
                        continue
                    if kept:
                        kept.add([cell])
                    yield cell
            if apart := len(again[End.APART]):
                _log.warning("%d of them go on each by itself: their engine does not train clients together", apart)
            if short := len(again[End.NO_MEMORY]):
                jobs = max(1, at_once // 2)
                text = "there was too little memory for %d of them beside %d others: they go on, %d at once"
                beside = sum(sorted(map(len, left))[-at_once:]) - 1
                _log.warning(text, short, beside, jobs)
            left = [*again[End.APART], *again[End.NO_MEMORY]]
    finally:
        gc.unfreeze()
        if kept:
            kept.add(cells)


def alike_together(cells: Sequence[Cell], device: str) -> list[tuple[Cell, ...]]:
    """Cells that are not finished and differ in seed or rate alone, where their engine may stack clients; others
    apart."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        alike = cell.compute is None and not cell.finished()
        found.setdefault(_but_for_seed_and_rate(cell) if alike else cell.key, []).append(cell)
    groups: list[tuple[Cell, ...]] = []
    for group in found.values():
        stacks = len(group) > 1 and _may_stack(group[0], device)
        groups += [tuple(group)] if stacks else [(cell,) for cell in group]
    if len(groups) == len(cells) and not all(cell.finished() for cell in cells):
        _log.warning("no cells are run together: none that are left for the engine vector differ in seed or rate alone")
    return groups


def _but_for_seed_and_rate(cell: Cell) -> str:
    """Equal for cells that differ only in the seed, in settings that follow it (`data.seed`) and in the rate."""
    settings = {k: "SEED" if k.endswith(".seed") and v == cell.seed else v for k, v in cell.settings.items()}
    settings.pop(RATE, None)
    return json.dumps([cell.recipe, settings], sort_keys=True, default=str)


def _may_stack(cell: Cell, device: str) -> bool:
    """Whether the engine is `vector`, or may come to that; and clients have no time limit, which needs their process to
    itself."""
    import torch

    recipe = load_recipe(cell.recipe, cell.settings)
    gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    name = recipe.engine["name"]
    return (name == "vector" or (name == "auto" and gpu)) and not recipe.round.time_limit


def _attempt(cells: Sequence[Cell], device: str, quiet: bool, alone: bool) -> list[End]:
    """Run cells, in lock-step if they are several. Where memory does not suffice that is said, or raised by one beside
    which nothing is run. Another failure of one is raised when the others have ended."""
    import torch

    from fedreel.machine.device import give_back

    try:
        if len(cells) > 1:
            return _in_lock_step(cells, device)
        cells[0].run(device, quiet)
        return [End.DONE]
    except (NoMemory, torch.OutOfMemoryError):
        if alone:
            raise
        return [End.NO_MEMORY]
    finally:
        give_back()


def _in_lock_step(cells: Sequence[Cell], device: str) -> list[End]:
    import torch

    from fedreel.engines.lock_step import in_lock_step
    from fedreel.machine.device import pick_device

    outcomes = in_lock_step([partial(cell.run, device, True) for cell in cells], pick_device(device))
    short = NoMemory, torch.OutOfMemoryError
    failed = [(c, o.error) for c, o in zip(cells, outcomes) if o.error is not None and not isinstance(o.error, short)]
    for cell, error in failed[1:]:
        _log.error("%s, seed %d: %s", cell.name, cell.seed, error)
    if failed:
        raise failed[0][1]
    return [End.APART if not o.begun else End.DONE if o.error is None else End.NO_MEMORY for o in outcomes]


def _share_cores(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
