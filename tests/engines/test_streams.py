"""Clients side by side train as one after another, to the bit on a CPU, and take turns while they do."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedreel.config import RoundConfig, TrainConfig
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.server import GLOBAL
from fedreel.core.task import ClientData, Outputs, Population
from fedreel.core.update import EVALUATE, Failure, Order, Update
from fedreel.engines.local import LocalEngine
from fedreel.engines.streams import StreamsEngine
from fedreel.errors import RecipeError
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedprox import FedProx
from fedreel.methods.moon import MOON
from fedreel.runs.run import load
from support.moves import make_sets, train
from support.toy import HeadStays, Notes, Random, Toy, ToyPopulation, make_worker, orders, results


@dataclass(frozen=True)
class Watched(Toy):
    """Keeps in which thread each step was made."""

    threads: list[int] = field(default_factory=list)

    def augment(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self.threads.append(threading.get_ident())
        return batch


@dataclass(frozen=True)
class Hanging(Toy):
    """A client's data never come."""

    def population(self, data: Any, seed: int) -> Population:
        return _Hanging(self.clients, seed)


class _Hanging(ToyPopulation):
    def data(self, client: str) -> ClientData:
        if client == "c1":
            time.sleep(60)
        return super().data(client)


@dataclass(frozen=True)
class Broken(Toy):
    """A client with a batch of three points cannot be trained."""

    error: type[BaseException] = ValueError

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        if threading.current_thread() is not threading.main_thread() and len(batch[0]) == 3:
            raise self.error("what an owner's data may do")
        return super().loss(outputs, batch)


def federate(folder: Path, at_once: int, method: Method, config: RoundConfig | None = None, **own: Any):
    config = config or RoundConfig(rounds=3)
    worker = make_worker(folder, method, rounds=config.rounds, **own)
    engine, notes = StreamsEngine(worker, at_once) if at_once else LocalEngine(worker), Notes()
    fed = Federation(engine, method, config, 0, watchers=[notes])
    try:
        method.run(fed)
    finally:
        engine.close()
    return fed, notes


def departures(folder: Path) -> list[str]:
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return sorted(json.dumps({k: v for k, v in row.items() if k not in ("time", "times", "prev")}) for row in rows)


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
@pytest.mark.parametrize(
    ("method", "train"),
    [
        (FedAvg(), {"momentum": 0.9, "epochs": 2}),
        (FedAvg(), {"optimizer": "adam", "lr": 0.01}),
        (FedAvg(), {"momentum": 0.9, "keep_optimizer": True}),
        (FedProx(mu=0.1), {}),
        (MOON(), {}),
        (HeadStays(), {"epochs": 2}),
    ],
    ids=["sgd", "adam", "keeps momentum", "a term", "remembers", "a head stays"],
)
def test_the_same_bits_as_one_after_another(
    tmp_path: Path, method: Method, train: dict[str, Any], at_once: int
) -> None:
    own = {"task": Random(clients=5), "train": TrainConfig(**{"batch_size": 4, "lr": 0.1, **train})}
    one, seen = federate(tmp_path / "local", 0, method, **own)
    many, seen_too = federate(tmp_path / "streams", at_once, method, **own)
    assert one.weights.distance(make_worker(tmp_path / "start", method, own["task"]).start) > 1e-3
    assert one.weights.equal(many.weights)
    assert [r["loss"] for r in seen.of("train")] == [r["loss"] for r in seen_too.of("train")]
    assert [r["metrics"] for r in seen.of("test")] == [r["metrics"] for r in seen_too.of("test")]
    assert departures(tmp_path / "local") == departures(tmp_path / "streams")


def test_what_is_drawn_here_is_left_alone(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedAvg(), Random())
    engine = StreamsEngine(worker, 2)
    torch.manual_seed(5)
    before = torch.default_generator.get_state()
    assert len(results(engine, orders(worker.start.clone(), ["c0", "c1", "c2"]))) == 3
    assert torch.equal(torch.default_generator.get_state(), before)
    engine.close()


def test_clients_take_turns_step_by_step(tmp_path: Path) -> None:
    task = Watched()
    engine = StreamsEngine(make_worker(tmp_path, FedAvg(), task), 2)
    # c0 has 8 points for training, c1 has 12: 2 and 3 batches of 4
    found = results(engine, orders(engine.blueprint.start.clone(), ["c0", "c1"]))
    assert {r.client for r in found} == {"c0", "c1"}
    a, b = dict.fromkeys(task.threads)
    assert task.threads == [a, b, a, b, b]
    engine.close()


def test_a_client_that_fails_fails_alone(tmp_path: Path) -> None:
    engine = StreamsEngine(make_worker(tmp_path, FedAvg(), Broken(), TrainConfig(batch_size=5, lr=0.1)), 3)
    # 8, 12, 16 and 20 points: only c0's last batch has 3
    found = results(engine, orders(engine.blueprint.start.clone(), ["c0", "c1", "c2", "c3"]))
    failed = [r for r in found if isinstance(r, Failure)]
    assert [f.client for f in failed] == ["c0"]
    assert "what an owner's data may do" in failed[0].detail
    assert {r.client for r in found if isinstance(r, Update)} == {"c1", "c2", "c3"}
    engine.close()


def test_what_ends_a_program_ends_it_here_too(tmp_path: Path) -> None:
    task = Broken(error=SystemExit)
    engine = StreamsEngine(make_worker(tmp_path, FedAvg(), task, TrainConfig(batch_size=5, lr=0.1)), 2)
    with pytest.raises(SystemExit):
        results(engine, orders(engine.blueprint.start.clone(), ["c0", "c1"]))
    engine.close()


def test_a_client_that_hangs_is_interrupted_after_its_time(tmp_path: Path) -> None:
    engine = StreamsEngine(make_worker(tmp_path, FedAvg(), Hanging()), 2)
    wanted = [replace(o, limit=3.0) for o in orders(engine.blueprint.start.clone(), ["c0", "c1", "c2"])]
    found = {r.client: r for r in results(engine, wanted)}
    assert [c for c, r in found.items() if isinstance(r, Failure)] == ["c1"]
    assert found["c1"].reason == "timeout"
    assert len(results(engine, orders(engine.blueprint.start.clone(), ["c0", "c2"], first=4))) == 2
    engine.close()


def test_a_client_s_second_order_begins_where_the_first_ended(tmp_path: Path) -> None:
    one = LocalEngine(make_worker(tmp_path / "local", HeadStays()))
    engine = StreamsEngine(make_worker(tmp_path / "streams", HeadStays()), 3)
    wanted = orders(one.blueprint.start.clone(), ["c0", "c0", "c1", "c0"])
    expected = {(r.round, r.step): r for r in results(one, wanted)}
    found = {(r.round, r.step): r for r in results(engine, wanted)}
    assert found.keys() == expected.keys()
    assert len(found) == 4
    for key, update in found.items():
        assert isinstance(update, Update)
        assert update.weights.equal(expected[key].weights)
    engine.close()


def test_closed_in_the_middle_no_thread_is_left(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    engine = StreamsEngine(make_worker(tmp_path, FedAvg(), train=TrainConfig(batch_size=4, lr=0.1, epochs=50)), 3)
    start = engine.blueprint.start.clone()
    engine.submit(Order(1, 1, "c3", EVALUATE, {GLOBAL: start}))
    for order in orders(start, ["c0", "c1", "c2"], first=2):
        engine.submit(order)
    assert engine.next().client == "c3"  # the others are under way by now
    own = {*threading.enumerate()} - before
    assert len(own) == 3
    engine.close()
    assert not [thread for thread in own if thread.is_alive()]
    assert not list((tmp_path / "clients").rglob("*.tmp"))


@pytest.mark.parametrize("wrong", [0, -1, 65, "4", 2.0])
def test_how_many_at_once_is_checked(wrong: Any) -> None:
    with pytest.raises(RecipeError, match="1 to 64"):
        StreamsEngine.begin(None, at_once=wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fsar"])
def test_on_a_gpu_clients_at_once_end_with_the_same_weights(tmp_path: Path, method: str) -> None:
    sets, ends = make_sets(tmp_path), []
    for engine in ({"name": "local"}, {"name": "streams", "at_once": 3}):
        how = {"batch_size": 1, "epochs": 3, "momentum": 0.9, "lr": 0.05}
        settings: dict[str, Any] = {"device": "cuda", "engine": engine, "train": how}
        out = train(tmp_path / engine["name"], sets, method, settings=settings, augmentation="shear-crop")
        ends.append(load(out).model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
