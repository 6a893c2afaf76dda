"""The stacked engine trains as the local one does, up to rounding, and leaves alone what it cannot stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.config import RoundConfig, TrainConfig
from fedreel.core.exchange import Policy
from fedreel.core.job_rules import JobRules
from fedreel.core.method import Method
from fedreel.core.server import GLOBAL
from fedreel.core.update import TRAIN, Failure, Order, Update
from fedreel.engines import vector
from fedreel.engines.local import LocalEngine
from fedreel.engines.vector import VectorEngine
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedprox import FedProx
from fedreel.runs.run import run
from support.flower_site import toy_recipe
from support.stacked import (
    CLOSE,
    EqualPoints,
    Frozen,
    Points,
    assert_close,
    both,
    count_stacked,
    ledger,
)
from support.toy import HeadStays, make_worker, orders, results


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return count_stacked(monkeypatch)


SETTINGS = [
    {},
    {"shuffle": False},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.05, "epochs": 3},
    {"weight_decay": 0.1, "clip_norm": 0.2},
    {"schedule": "cosine", "epochs": 2, "batch_size": 5},
    {"schedule": "step", "milestones": (1,), "batch_size": 100},
    {"optimizer": "adam", "lr": 0.01, "epochs": 2},
    {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.2, "keep_optimizer": True},
    {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.2, "clip_norm": 0.2, "keep_optimizer": True},
    {"momentum": 0.9, "keep_optimizer": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("task", [Points(), EqualPoints()], ids=["unequal", "equal"])
def test_equals_local_up_to_rounding(
    tmp_path: Path, stacked: list[int], task: Points, settings: dict[str, Any]
) -> None:
    train = TrainConfig(**{"batch_size": 6, "lr": 0.2, **settings})
    one, seen, many, seen_too = both(tmp_path, FedAvg(), task=task, train=train)
    assert stacked == [5, 5, 5]
    start = make_worker(tmp_path / "start", FedAvg(), task).start.clone()
    assert one.weights.distance(start) > 100 * CLOSE  # there was something to get wrong
    assert_close(one.weights, many.weights)
    for a, b in zip(seen.of("train"), seen_too.of("train")):
        assert a["clients"] == b["clients"]
        assert a["loss"] == pytest.approx(b["loss"], abs=CLOSE)
        assert (a["bytes_up"], a["bytes_down"]) == (b["bytes_up"], b["bytes_down"])


def test_sampled_clients(tmp_path: Path, stacked: list[int]) -> None:
    one, seen, many, seen_too = both(tmp_path, FedAvg(), RoundConfig(rounds=4, fraction=0.6), task=Points())
    assert [r["clients"] for r in seen.of("train")] == [r["clients"] for r in seen_too.of("train")]
    assert stacked == [3] * 4
    assert_close(one.weights, many.weights)


def test_private_tensors_stay_and_persist(tmp_path: Path, stacked: list[int]) -> None:
    one, _, many, _ = both(tmp_path, HeadStays(), task=Points())
    assert stacked
    assert_close(one.weights, many.weights)
    for client in one.clients:
        a, b = (
            make_worker(tmp_path / engine, HeadStays(), Points()).store.load(client, (4, 0)).tensors
            for engine in ("local", "vector")
        )
        assert set(a) == {"model/head.weight", "model/head.bias", "model/scale"} == set(b)
        torch.testing.assert_close(a, b, atol=CLOSE, rtol=CLOSE)


def test_time_limits_are_kept_one_by_one(tmp_path: Path, stacked: list[int]) -> None:
    one, _, many, _ = both(tmp_path, FedAvg(), RoundConfig(rounds=1, time_limit=60), task=Points())
    assert stacked == []
    assert one.weights.equal(many.weights)


def test_ledger_is_that_of_local(tmp_path: Path) -> None:
    both(tmp_path, FedAvg(), task=Points())
    one, many = ledger(tmp_path / "local"), ledger(tmp_path / "vector")
    assert len(one) == len(many) > 15
    for a, b in zip(one, many):
        assert a.get("numbers", {}) == pytest.approx(b.get("numbers", {}), abs=CLOSE)
        assert {**a, "numbers": {}} == {**b, "numbers": {}}


def test_updates_come_in_the_order_of_the_orders(tmp_path: Path, stacked: list[int]) -> None:
    local = LocalEngine(make_worker(tmp_path / "local", FedAvg(), Points()))
    engine = VectorEngine(make_worker(tmp_path / "vector", FedAvg(), Points()))
    wanted = orders(engine.blueprint.start.clone(), ["c3", "c0", "c4", "c1", "c2"])
    found = results(engine, wanted)
    assert [(u.client, u.step) for u in found] == [(o.client, o.step) for o in wanted]
    for a, b in zip(results(local, wanted), found):
        assert isinstance(a, Update)
        assert isinstance(b, Update)
        assert_close(a.weights, b.weights)
        assert a.numbers == pytest.approx(b.numbers, abs=CLOSE)
    assert stacked == [5]
    assert engine.next() is None


def test_what_nobody_asked_for_has_not_left(tmp_path: Path, stacked: list[int]) -> None:
    engine = VectorEngine(make_worker(tmp_path, FedAvg(), Points()))
    for order in orders(engine.blueprint.start.clone(), ["c0", "c1", "c2"]):
        engine.submit(order)
    assert engine.next().client == "c0"
    engine.close()
    assert stacked == [3]
    assert [row["client"] for row in ledger(tmp_path) if row["kind"] == "departure"] == ["c0"]


def test_every_client_starts_from_the_model_of_its_own_order(tmp_path: Path, stacked: list[int]) -> None:
    local = LocalEngine(make_worker(tmp_path / "local", FedAvg(), Points()))
    engine = VectorEngine(make_worker(tmp_path / "vector", FedAvg(), Points()))
    start = engine.blueprint.start.clone()
    wanted = [Order(1, i, f"c{i}", TRAIN, {GLOBAL: start * (1 + 0.1 * i)}) for i in range(4)]
    for a, b in zip(results(local, wanted), results(engine, wanted)):
        assert_close(a.weights, b.weights)
    assert stacked == [4]


def test_a_later_batch_of_orders_does_not_touch_earlier_updates(tmp_path: Path) -> None:
    engine = VectorEngine(make_worker(tmp_path, FedAvg(), Points()))
    start = engine.blueprint.start.clone()
    first = results(engine, orders(start, ["c0", "c1", "c2"]))
    copies = [u.weights.clone() for u in first]
    results(engine, orders(start * 2.0, ["c2", "c3", "c4"]))
    assert all(u.weights.equal(c) for u, c in zip(first, copies))


def test_orders_of_one_client_are_not_stacked_with_each_other(tmp_path: Path, stacked: list[int]) -> None:
    local = LocalEngine(make_worker(tmp_path / "local", HeadStays(), Points()))
    engine = VectorEngine(make_worker(tmp_path / "vector", HeadStays(), Points()))
    wanted = orders(engine.blueprint.start.clone(), ["c0", "c1", "c0", "c1", "c0"])
    for a, b in zip(results(local, wanted), results(engine, wanted)):
        assert_close(a.weights, b.weights)
    assert stacked == [2, 2]


def test_a_refusal_is_of_that_client_only(tmp_path: Path, stacked: list[int]) -> None:
    worker = make_worker(tmp_path, FedAvg(), Points(), policy=Policy(min_samples=12))  # c0 has 8
    engine = VectorEngine(worker)
    found = results(engine, orders(engine.blueprint.start.clone(), ["c1", "c0", "c2"]))
    assert stacked == [3]
    assert [u.client for u in found if isinstance(u, Update)] == ["c1", "c2"]
    assert isinstance(found[1], Failure)
    assert (found[1].client, found[1].reason) == ("c0", "policy")
    engine.sync()
    assert [row["client"] for row in ledger(tmp_path) if row["kind"] == "departure"] == ["c1", "c2"]


@pytest.mark.parametrize("method", [FedAvg(), FedProx()], ids=["plain", "with a term"])
def test_a_site_that_allows_fewer_epochs_trains_nothing(tmp_path: Path, stacked: list[int], method: Method) -> None:
    train, policy = TrainConfig(batch_size=4, lr=0.1, epochs=2), Policy(jobs=JobRules(max_epochs=1))
    engine = VectorEngine(make_worker(tmp_path, method, Points(), train, policy=policy))
    found = results(engine, orders(engine.blueprint.start.clone(), ["c0", "c1"]))
    assert [f.reason for f in found if isinstance(f, Failure)] == ["policy", "policy"]
    assert stacked == []


def test_a_site_that_lets_no_weights_out_trains_nothing(tmp_path: Path, stacked: list[int]) -> None:
    engine = VectorEngine(make_worker(tmp_path, FedAvg(), Points(), policy=Policy(refuse=("weights",))))
    found = results(engine, orders(engine.blueprint.start.clone(), ["c0", "c1"]))
    assert [f.reason for f in found if isinstance(f, Failure)] == ["policy", "policy"]
    assert stacked == []


@pytest.mark.parametrize("task", [EqualPoints(poison="c1"), EqualPoints(bad="c1")], ids=["diverges", "bad label"])
def test_a_failure_is_of_that_client_only(tmp_path: Path, stacked: list[int], task: EqualPoints) -> None:
    local = LocalEngine(make_worker(tmp_path / "local", FedAvg(), task))
    engine = VectorEngine(make_worker(tmp_path / "vector", FedAvg(), task))
    wanted = orders(engine.blueprint.start.clone(), ["c0", "c1", "c2"])
    one, many = results(local, wanted), results(engine, wanted)
    assert stacked == [3]
    assert one[1] == many[1]
    assert isinstance(many[1], Failure)
    assert many[1].reason == ("diverged" if task.poison else "error")
    for i in (0, 2):
        assert_close(one[i].weights, many[i].weights)


def test_an_unknown_client_is_named(tmp_path: Path, stacked: list[int]) -> None:
    engine = VectorEngine(make_worker(tmp_path, FedAvg(), Points()))
    found = results(engine, orders(engine.blueprint.start.clone(), ["c0", "c1", "nobody", "c2", "c3"]))
    assert isinstance(found[2], Failure)
    assert "nobody" in found[2].detail
    assert [u.client for u in found] == ["c0", "c1", "nobody", "c2", "c3"]
    assert stacked == [2, 2]


def test_models_under_way_fit_the_memory_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(tmp_path, FedAvg(), Points())
    size = sum(f.nbytes for f in worker.weights.flat.values())
    assert VectorEngine(worker).slots == vector.MOST_CLIENTS
    for bytes_allowed, slots in [(3 * size, 3), (3 * size - 1, 2), (size - 1, 1)]:
        monkeypatch.setattr(vector, "MOST_BYTES", bytes_allowed)
        assert VectorEngine(worker).slots == slots
    monkeypatch.setattr(vector, "MOST_BYTES", 3 * size)
    assert VectorEngine(make_worker(tmp_path / "frozen", FedAvg(), Frozen())).slots == 1


def test_a_cohort_larger_than_the_slots(tmp_path: Path, stacked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "MOST_CLIENTS", 3)
    one, _, many, _ = both(tmp_path, FedAvg(), RoundConfig(rounds=2), task=Points(clients=8))
    assert stacked == [3, 3, 2] * 2
    assert_close(one.weights, many.weights)


@pytest.mark.parametrize("alone", [True, False])
def test_the_summary_says_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    monkeypatch.setattr(vector, "LONG", -1.0 if alone else 1e30)
    recipe = toy_recipe(rounds=1, transfer=None, engine={"name": "vector"})
    summary = run(recipe, tmp_path / "run", quiet=True, task=Points(), method=FedAvg()).summary
    assert summary["engine"] == ("local" if alone else "vector")
    notices = summary.get("engine_notices", [])
    assert len(notices) == alone
    assert all(text.startswith("clients are trained one by one, not stacked: a step is ") for text in notices), notices
