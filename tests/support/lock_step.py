"""Runs of small tasks that differ in the seed, carried out alone and in lock-step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedreel.config import DataConfig, Recipe, RoundConfig, TrainConfig
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.task import Task
from fedreel.engines.lock_step import Clock, Outcome, in_lock_step
from fedreel.engines.stacked.training import StackedTraining, Trained
from fedreel.methods.fedavg import FedAvg
from fedreel.runs.reading import read_summary
from fedreel.runs.run import run
from support.stacked import CLOSE, Points, ledger

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Seeded:
    """A run of a task; `event` is called in every round, before anything is done. The task's population is as the
    file `clients.txt` of the folder `source` says, if that is there."""

    seed: int
    task: Task = field(default_factory=Points)
    method: Method = field(default_factory=FedAvg)
    rounds: int = 3
    train: Mapping[str, Any] | None = None
    engine: str = "vector"
    device: str = "cpu"
    round: Mapping[str, Any] | None = None
    event: Callable[[Federation, int], None] | None = None
    source: Path = Path("nowhere")

    def run(self, out: Path, resume: bool = False) -> None:
        train = {"batch_size": 6, "lr": 0.2, "momentum": 0.9, "schedule": "cosine", **(self.train or {})}
        rounds = {"rounds": self.rounds, "evaluate_every": 1, "min_answers": 1.0, **(self.round or {})}
        recipe = Recipe(
            system="toy",
            device=self.device,
            seed=self.seed,
            task={"name": "toy"},
            method={"name": "fedavg"},
            engine={"name": self.engine},
            data=DataConfig(source=str(self.source)),
            train=TrainConfig(**train),
            round=RoundConfig(**rounds),
        )
        method = self.method if self.event is None else _eventful(self.method, self.event)
        run(recipe, out, quiet=True, task=self.task, method=method, resume=resume)


def _eventful(method: Method, event: Callable[[Federation, int], None]) -> Method:
    class Eventful(type(method)):  # type: ignore[misc]
        def run(self, fed: Federation) -> None:
            rounds = fed.rounds

            def watched() -> Iterator[int]:
                for number in rounds():
                    event(fed, number)
                    yield number

            fed.rounds = watched  # type: ignore[method-assign]
            super().run(fed)

    found: Method = object.__new__(Eventful)
    found.__dict__.update(method.__dict__)
    return found


def alone(jobs: Sequence[Seeded], root: Path) -> list[Path]:
    """Their folders."""
    folders = [root / f"alone-{i}" for i in range(len(jobs))]
    for job, folder in zip(jobs, folders):
        job.run(folder)
    return folders


def together(
    jobs: Sequence[Seeded], root: Path, resume: bool = False, device: torch.device = CPU
) -> tuple[list[Path], list[Outcome]]:
    folders = [root / f"together-{i}" for i in range(len(jobs))]
    works = [partial(_carry_out, job, folder, resume) for job, folder in zip(jobs, folders)]
    return folders, in_lock_step(works, device)


def _carry_out(job: Seeded, folder: Path, resume: bool, clock: Clock) -> None:
    job.run(folder, resume and folder.exists())


def assert_same_end(one: Path, other: Path, most: float = CLOSE, repeated: bool = False) -> None:
    """Model, metrics, what clients keep and what the ledger says: there what was `repeated` is twice."""
    a, b = (load_file(folder / "model" / "global.safetensors") for folder in (one, other))
    assert_near(a, b, most)
    kept, kept_too = (_private(folder) for folder in (one, other))
    assert kept.keys() == kept_too.keys()
    for name in kept:
        assert_near(kept[name], kept_too[name], most)
    first, second = (read_summary(folder)["metrics"] for folder in (one, other))
    assert first == pytest.approx(second, abs=most)
    if repeated:
        found, found_too = (
            [(r["round"], r["client"], r["purpose"]) for r in ledger(f) if "round" in r] for f in (one, other)
        )
        assert {*found} == {*found_too}
        assert len(found) <= len(found_too)
        return
    for row, row_too in zip(ledger(one), ledger(other), strict=True):
        assert row.pop("numbers", {}) == pytest.approx(row_too.pop("numbers", {}), abs=most)
        assert row == row_too


def assert_near(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor], most: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=most, rtol=most, check_device=False)


def _private(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {str(f.relative_to(folder)): load_file(f) for f in sorted((folder / "clients").rglob("*.safetensors"))}


class Counted:
    """How many clients of how many runs every stacked training had."""

    def __init__(self, patch: pytest.MonkeyPatch, fail: Callable[[int], None] = lambda runs: None) -> None:
        """`fail` is called first with how many runs it would be of."""
        self.groups: list[tuple[int, ...]] = []
        fit = StackedTraining.fit_runs

        def counting(training: StackedTraining, runs: Any) -> list[Trained]:
            fail(len(runs))
            self.groups.append(tuple(map(len, runs)))
            return fit(training, runs)

        patch.setattr(StackedTraining, "fit_runs", counting)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self.groups)
