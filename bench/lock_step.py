"""Seeds of a row in lock-step in one process against a process for each: rounds a second of all of them together.

    python bench/lock_step.py --data FOLDER            # on a GPU; without --data on the playground
    python bench/lock_step.py --count --device cpu     # stacked steps and operations of a round, in this process
    python bench/lock_step.py --data FOLDER --kernels  # what the GPU does in a round, kernel by kernel, in this process

Rows of FSAR's Table 1 (`--rows`), so many `--seeds` of each. Several rows are run at once: a process for each in
lock-step, and one for every cell apart. Time counts from when all have done some rounds until the first has ended, by
the times in the cells' ledgers. With --count nothing is timed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fedreel.engines import vector
from fedreel.engines.stacked import convolutions, step
from fedreel.engines.stacked.training import Place, StackedTraining, Trained
from fedreel.engines.step_size import Kernels
from fedreel.reproduce import wanted
from fedreel.reproduce.cells import Cell
from fedreel.reproduce.side_by_side import each_done
from fedreel.tasks.skeleton import stgcn
from loops import now

WARM_UP = 4  # rounds that are not timed: steps are recorded in them
COUNTED = 2  # rounds that are counted
SHOWN = 20  # kernels, those first that took longest
WAYS = {"apart": False, "in lock-step": True}


def cells_of(arguments: argparse.Namespace, out: Path, rounds: int) -> list[Cell]:
    given = {"scale": arguments.scale, "data": arguments.data, "rows": arguments.rows, "seeds": arguments.seeds}
    cells = [cell for s in wanted("fsar", "table1", out=out, over={}, **given) for cell in s.cells()]
    own = {"engine.name": "vector", "round.rounds": rounds}  # a table refuses what would undo its rows
    own |= {key: json.loads(value) for key, value in (text.split("=", 1) for text in arguments.set)}
    return [replace(cell, settings={**cell.settings, **own}) for cell in cells]


def begins(cell: Cell) -> list[float]:
    """When the first client of each round was done with."""
    found: dict[int, float] = {}
    for line in (cell.folder / "ledger.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.get("purpose") == "train":
            found.setdefault(row["round"], row["time"])
    return [*found.values()]


def rounds_a_second(cells: Sequence[Cell]) -> float:
    """Of all together, while all of them are at work."""
    times = [begins(cell) for cell in cells]
    first, last = max(own[WARM_UP] for own in times), min(own[-1] for own in times)
    if last <= first:
        raise SystemExit("they were not at work at the same time: take more --rounds")
    return sum(first < time <= last for own in times for time in own) / (last - first)


def timed(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    found = {}
    for way, together in WAYS.items():
        cells = cells_of(arguments, work / way.replace(" ", "-"), arguments.rounds)
        rows = len(cells) // arguments.seeds
        for _ in each_done(cells, arguments.device, rows if together else len(cells), None, together):
            pass
        found[way] = rounds_a_second(cells)
        print(f"{way}: {found[way]:.3f} rounds a second", flush=True)
    return {"rounds_a_second": found, "ratio": found["in lock-step"] / found["apart"]}


def counted(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """A round of all seeds of the rows; steps are made on a CPU as on a GPU, however long they take there."""
    found = {}
    for way, together in WAYS.items():
        made: Counter[str] = Counter()
        fit, make = StackedTraining.fit_runs, Place.make

        def fitting(training: StackedTraining, runs: Any, fit: Any = fit, made: Any = made) -> list[Trained]:
            with Kernels() as kernels:
                trained: list[Trained] = fit(training, runs)
            made.update({"trainings": 1, "operations": kernels.count})
            return trained

        def making(place: Place, replayed: Any, members: Any, batch: Any, make: Any = make, made: Any = made) -> None:
            made.update({"steps": 1, "clients' steps": len(members)})
            make(place, replayed, members, batch)

        cells = cells_of(arguments, work / way.replace(" ", "-"), COUNTED)
        with (
            patch.object(StackedTraining, "fit_runs", fitting),
            patch.object(Place, "make", making),
            patch.object(vector, "LONG", float("inf")),
            patch.object(convolutions, "DEVICES", ("cpu", "cuda")),  # as they are made on a GPU, where they are faster
            patch.object(convolutions, "CHANNELS", 1),
            patch.object(step, "DEVICES", ("cpu", "cuda")),
            patch.object(stgcn, "pays", lambda conv, x: False),
        ):
            for _ in each_done(cells, arguments.device, 1, None, together):
                pass
        found[way] = {name: number / COUNTED for name, number in made.items()}
        print(f"{way}, a round of all: {found[way]}", flush=True)
    return {"a_round_of_all": found}


def by_kernels(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Of each way, trainings of all its clients after some rounds: how long they took, and how long each kernel."""
    found = {}
    for way, together in WAYS.items():
        cells = cells_of(arguments, work / way.replace(" ", "-"), WARM_UP + COUNTED)
        taken: Counter[str] = Counter()
        kernels: Counter[str] = Counter()
        launches: Counter[str] = Counter()
        fit, begun = StackedTraining.fit_runs, 0

        def fitting(training: StackedTraining, runs: Any, fit: Any = fit, own: Any = (taken, kernels, launches)) -> Any:
            nonlocal begun
            begun += 1
            if (begun - 1) % (WARM_UP + COUNTED) < WARM_UP:
                return fit(training, runs)
            taken, kernels, launches = own
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                began = now("cuda")
                trained = fit(training, runs)
                taken.update({"trainings": 1, "ms": 1000 * (now("cuda") - began)})
            for event in profiler.key_averages():
                kernels[event.key] += event.self_device_time_total / 1000
                launches[event.key] += event.count
            return trained

        with patch.object(StackedTraining, "fit_runs", fitting):
            for _ in each_done(cells if together else cells[:1], arguments.device, 1, None, together):
                pass
        runs = arguments.seeds if together else 1
        rounds = taken["trainings"]
        busy = sum(kernels.values()) / rounds
        print(f"{way}, a round of {runs}: {taken['ms'] / rounds:.0f} ms, in kernels {busy:.0f} ms", flush=True)
        for name, ms in kernels.most_common(SHOWN):
            each = 1000 * ms / launches[name]
            print(f"  {ms / rounds:8.2f} ms {launches[name] / rounds:8.0f} x {each:7.1f} us  {name[:90]}", flush=True)
        found[way] = {"runs": runs, "ms": taken["ms"] / rounds, "kernels_ms": busy}
    return {"a_round": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of skeleton sets [the playground]")
    parser.add_argument("--scale", default="medium")
    parser.add_argument("--rows", default="=FSAR & =network ST-GCN")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="a setting of all rows")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--count", action="store_true", help="count steps and operations instead")
    instead.add_argument("--kernels", action="store_true", help="time the GPU's kernels instead")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp())
    try:
        found = (counted if arguments.count else by_kernels if arguments.kernels else timed)(arguments, work)
    finally:
        shutil.rmtree(work)
    print(json.dumps({"bench": "lock_step", "rows": arguments.rows, "seeds": arguments.seeds, **found}))


if __name__ == "__main__":
    main()
