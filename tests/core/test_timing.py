"""How long clients train and how much of that they wait for their data, by a clock that only the test moves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedreel.config import PrivacyConfig, RoundConfig, TrainConfig
from fedreel.core.discretion import ClientDiscretion
from fedreel.core.exchange import Policy
from fedreel.core.federation import Federation
from fedreel.core.round_stats import waiting_share
from fedreel.core.task import ClientData, Population
from fedreel.core.timing import Stopwatch, Times
from fedreel.core.update import TRAIN, Order, Update
from fedreel.engines.local import LocalEngine
from fedreel.engines.streams import StreamsEngine
from fedreel.engines.vector import VectorEngine
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedprox import FedProx
from support.toy import Notes, Points, Toy, ToyPopulation, make_worker

LOADING, READING, STEP = 5.0, 3.0, 1.0  # seconds: of a client's data, of a batch, of a step
BATCHES = (2, 3, 4, 5)  # of the toy's clients, four points each


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


class Read(Points):
    """Points that are read when their turn comes, which takes its time."""

    resident = False
    clock: Clock

    def to(self, device: torch.device) -> Read:
        return self

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[Tensor, ...]]:
        for batch in super().batches(size, generator):
            self.clock.now += READING
            yield batch


class Readers(ToyPopulation):
    def __init__(self, clock: Clock, kind: type[Points]) -> None:
        super().__init__(4, 0)
        self.clock, self.kind = clock, kind

    def data(self, client: str) -> ClientData:
        own = super().data(client)

        def load() -> Points:
            self.clock.now += LOADING
            return self.kind(own.train.tensors)  # type: ignore[attr-defined]

        return ClientData(load, own.test, own.numbers)


@dataclass(frozen=True)
class Timed(Toy):
    clock: Any = None
    kind: type[Points] = Read

    def population(self, data: Any, seed: int) -> Population:
        self.kind.clock = self.clock  # type: ignore[attr-defined]
        return Readers(self.clock, self.kind)

    def augment(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self.clock.now += STEP
        return batch


def trained(
    folder: Path, clock: Clock, make: Callable[..., Any] = LocalEngine, method: Any = None, **own: Any
) -> Notes:
    method, notes = method or FedAvg(), Notes()
    task = Timed(clock=clock, kind=own.pop("kind", Read))
    engine = make(make_worker(folder, method, task, TrainConfig(batch_size=4, lr=0.1, epochs=2), **own))
    fed = Federation(engine, method, RoundConfig(rounds=2, evaluate_every=0), 0, watchers=[notes])
    method.run(fed)
    engine.close()
    notes.totals = fed.progress.totals  # type: ignore[attr-defined]
    return notes


def departures(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return [row for row in rows if row.get("purpose") == TRAIN]


@pytest.mark.parametrize("make", [LocalEngine, lambda worker: StreamsEngine(worker, 3)], ids=["local", "streams"])
def test_waiting_is_what_loading_and_reading_took(tmp_path: Path, clock: Clock, make: Callable[..., Any]) -> None:
    notes = trained(tmp_path, clock, make)
    steps = 2 * sum(BATCHES)  # two epochs
    first, second = notes.of("train")
    assert first["waiting_seconds"] == 4 * LOADING + steps * READING
    assert first["training_seconds"] == first["waiting_seconds"] + steps * STEP
    assert second["waiting_seconds"] == steps * READING  # what was loaded stays
    assert second["training_seconds"] == steps * (READING + STEP)
    share = (20 + 2 * 28 * 3) / (20 + 2 * 28 * 4)
    assert waiting_share(notes.totals) == pytest.approx(share, abs=5e-5)  # type: ignore[attr-defined]
    assert departures(tmp_path)[0]["times"] == [LOADING + 4 * (READING + STEP), LOADING + 4 * READING]
    assert "time" in departures(tmp_path)[0]["kinds"]


@pytest.mark.parametrize("method", [FedAvg(), FedProx(mu=0.1)], ids=["plain", "carried out twice"])
def test_clients_that_are_trained_together_share_the_time(tmp_path: Path, clock: Clock, method: Any) -> None:
    """Nothing of it is lost or counted twice. (Before they train, somebody's step is measured, and his data are loaded
    for that.)"""
    first, second = trained(tmp_path, clock, VectorEngine, method).of("train")
    assert second["waiting_seconds"] == pytest.approx(2 * sum(BATCHES) * READING)
    assert first["waiting_seconds"] == pytest.approx(3 * LOADING + 2 * sum(BATCHES) * READING)
    rows = [row["times"] for row in departures(tmp_path)[4:]]
    assert all(row == pytest.approx(rows[0]) for row in rows)


def test_data_in_memory_are_not_waited_for(tmp_path: Path, clock: Clock) -> None:
    first, second = trained(tmp_path, clock, kind=Points).of("train")
    assert first["waiting_seconds"] == 4 * LOADING
    assert (second["waiting_seconds"], second["training_seconds"]) == (0.0, 2 * sum(BATCHES) * STEP)


def test_the_time_that_others_take_is_not_the_clients_own(clock: Clock) -> None:
    watch = Stopwatch(torch.device("cpu"))
    clock.now += 2

    def others() -> None:
        clock.now += 50

    watch.outside(others)
    clock.now += 1
    assert watch.stop() == Times(3.0, 0.0)


def test_a_policy_keeps_times_in_and_the_rest_leaves(tmp_path: Path, clock: Clock) -> None:
    notes = trained(tmp_path, clock, policy=Policy(refuse=("time",)))
    assert [row["answered"] for row in notes.of("train")] == [4, 4]
    assert all("training_seconds" not in row for row in notes.of("train"))
    assert all("times" not in row and "time" not in row["kinds"] for row in departures(tmp_path))
    assert waiting_share(notes.totals) is None  # type: ignore[attr-defined]


def test_a_worker_says_beforehand_whether_times_leave(tmp_path: Path) -> None:
    assert make_worker(tmp_path, FedAvg()).leaves()["times"] == "time"
    assert "times" not in make_worker(tmp_path, FedAvg(), policy=Policy(refuse=("time",))).leaves()


def test_under_privacy_no_times_leave(tmp_path: Path, clock: Clock) -> None:
    worker = make_worker(tmp_path, FedAvg(), Timed(clock=clock))
    config = PrivacyConfig(unit="client", epsilon=8.0, delta=1e-3, clip=1.0)
    worker.discretion = ClientDiscretion(config, RoundConfig(rounds=2), None)
    worker.declared = {}
    update = worker.execute(Order(1, 1, "c0", TRAIN, {"global": worker.start}))
    assert isinstance(update, Update)
    assert update.times is None
    assert "times" not in departures(tmp_path)[0]
    assert "times" not in worker.leaves()


class Event:
    """A mark in the work of a GPU that is done with all that it has been given at `busy_until`."""

    clock: Clock
    busy_until = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        assert stream == "its stream"
        self.at = max(self.clock.now, Event.busy_until)

    def query(self) -> bool:
        return self.clock.now >= self.at

    def synchronize(self) -> None:
        self.clock.now = max(self.clock.now, self.at)

    def elapsed_time(self, other: Event) -> float:
        return 1000 * (other.at - self.at)


@pytest.mark.parametrize(("work", "idle"), [(10.0, 3.0), (2.0, 3.0 + 199 * 1.0)], ids=["GPU is slower", "is faster"])
def test_a_gpu_that_has_work_does_not_wait(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, work: float, idle: float
) -> None:
    """A batch is read in three seconds, and a step given to the GPU in no time. For the first batch it waits in any
    case, for the others if it is done with a step sooner than the next batch is there."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "its stream")
    monkeypatch.setattr(Event, "clock", clock, raising=False)
    monkeypatch.setattr(Event, "busy_until", clock.now)
    Read.clock = clock
    watch = Stopwatch(torch.device("cuda"))
    for _ in watch.batches(Read((torch.zeros(800, 2), torch.zeros(800))), 4, None):
        Event.busy_until = max(clock.now, Event.busy_until) + work
    clock.now = max(clock.now, Event.busy_until)
    found = watch.stop()
    assert found.waiting == pytest.approx(idle)
    assert found.training == pytest.approx(idle + 200 * work)


@pytest.mark.parametrize(
    "row", [[1.0, 2.0], [-1.0, -1.0], [float("nan")] * 2, [float("inf")] * 2, ["x", 1], [1.0], [1e300, 0.0], 7]
)
def test_what_is_no_times_is_refused(row: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Times.of_row(row)
