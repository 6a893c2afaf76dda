"""The stacked engine trains as the local one does, up to rounding, and leaves alone what it cannot stack."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.config import RoundConfig, TrainConfig
from fedreel.core.exchange import Policy
from fedreel.core.method import Method
from fedreel.core.server import GLOBAL
from fedreel.core.task import Outputs
from fedreel.core.update import TRAIN, Failure, Order, Update
from fedreel.engines import vector
from fedreel.engines.local import LocalEngine
from fedreel.engines.stacked.training import StackedTraining, Trained
from fedreel.engines.step_size import measured_step
from fedreel.engines.vector import VectorEngine
from fedreel.methods.ditto import Ditto
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedbn import FedBN
from fedreel.methods.feddyn import FedDyn
from fedreel.methods.fednova import FedNova
from fedreel.methods.fedprox import FedProx
from fedreel.methods.fedrep import FedRep
from fedreel.methods.fedu import FedU
from fedreel.methods.fsar import FSAR
from fedreel.methods.moon import MOON
from fedreel.methods.scaffold import SCAFFOLD
from support.recorder import FakeRecorder
from support.stacked import (
    CLOSE,
    EqualPoints,
    Masks,
    Points,
    assert_close,
    assert_dropped_three_in_ten,
    both,
    federate,
    masks,
)
from support.toy import HeadStays, Random, Toy, make_worker, orders, results


@dataclass(frozen=True)
class Dropping(Points):
    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        features = F.dropout(model.backbone(batch[0]), 0.3, model.training)
        return Outputs(features, model.head(features))


@dataclass(frozen=True)
class Branching(Points):
    """Looks at values: vmap cannot follow."""

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = super().loss(outputs, batch)
        return loss * 2 if float(loss.detach()) > 0.5 else loss


@dataclass(frozen=True)
class Frozen(Points):
    def model(self) -> nn.Module:
        return super().model().requires_grad_(False)


@dataclass(frozen=True)
class Different(Points):
    """Whatever the reason: a stacked step gives something else."""

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        stacked = torch._C._functorch.is_functorch_wrapped_tensor(outputs.logits)
        return super().loss(outputs, batch) * (1.1 if stacked else 1.0)


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients every stacked training had."""
    sizes: list[int] = []
    fit = StackedTraining.fit

    def counting(self: StackedTraining, asks: Any) -> Trained:
        sizes.append(len(asks))
        return fit(self, asks)

    monkeypatch.setattr(StackedTraining, "fit", counting)
    return sizes


def ledger(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("time", "prev")} for row in rows]


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


METHODS = {
    "a term": FedProx(mu=0.3),
    "a term with two models": MOON(mu=2.0),
    "a term with blocks": FSAR(mu=0.1, blocks=2),
    "an adjustment": SCAFFOLD(),
    "a term and an adjustment": FedDyn(alpha=0.1),
    "two trainings": Ditto(lambda_=0.5),
    "some tensors only": FedRep(),
    "own norms": FedBN(),
    "looks at what was trained": FedU(mu=0.01),
    "steps are counted": FedNova(),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(
    "task", [Toy(clients=5), Random(clients=5), EqualPoints()], ids=["batch norm", "draws", "tied, partly frozen"]
)
def test_what_methods_do_with_clients_is_stacked_too(
    tmp_path: Path, stacked: list[int], method: Method, task: Toy
) -> None:
    """Batch norm in training, dropout and augmentation by the same random numbers, terms, private state."""
    train = TrainConfig(batch_size=4, lr=0.05, epochs=2, momentum=0.9)
    one, seen, many, seen_too = both(tmp_path, method, task=task, train=train)
    assert stacked == [5, 5, 5]
    assert_close(one.weights, many.weights)
    for a, b in zip(seen.of("train"), seen_too.of("train")):
        assert a["loss"] == pytest.approx(b["loss"], abs=CLOSE)
    kept = [
        {c: make_worker(tmp_path / engine, method, task).store.load(c, (4, 0)).tensors for c in one.clients}
        for engine in ("local", "vector")
    ]
    torch.testing.assert_close(kept[0], kept[1], atol=1e-4, rtol=CLOSE)  # control variates are divided by the rate


def test_clients_draw_what_they_would_draw_alone(tmp_path: Path, stacked: list[int]) -> None:
    """Nearly: rounding apart. With anybody else's masks the weights would be elsewhere."""
    one, _, many, _ = both(tmp_path, FedAvg(), task=Dropping())
    assert stacked
    assert_close(one.weights, many.weights)
    other, _ = federate(tmp_path / "seeded", VectorEngine, FedAvg(), task=Dropping(), seed=1)
    assert one.weights.distance(other.weights) > 100 * CLOSE


def test_random_numbers_of_this_process_are_left_alone(tmp_path: Path, stacked: list[int]) -> None:
    engine = VectorEngine(make_worker(tmp_path, FedAvg(), Dropping()))
    torch.manual_seed(5)
    before = torch.default_generator.get_state()
    assert len(results(engine, orders(engine.blueprint.start.clone(), ["c0", "c1", "c2"]))) == 3
    assert stacked == [3]
    assert torch.equal(torch.default_generator.get_state(), before)


def test_drawn_for_all_at_once_random_numbers_are_as_many_and_differ(tmp_path: Path, stacked: list[int]) -> None:
    how = TrainConfig(batch_size=8, lr=0.7)
    found = [masks(make_worker(tmp_path / f"{i}", FedAvg(), Masks(), how, seed=i // 2)) for i in range(3)]
    assert stacked == [40] * 3
    assert_dropped_three_in_ten(found[0])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


class PlainTerm(FedAvg):
    def local_training(self, client: Any) -> None:
        client.fit([lambda step: step.outputs.logits.square().mean()])


@pytest.mark.parametrize(
    ("method", "task", "reason"),
    [
        (FedAvg(), Branching(), "cannot be vmapped"),
        (PlainTerm(), Points(), "a plain function"),
        (FedAvg(), Frozen(), "nothing of the model is trained"),
        (FedProx(), Different(), "other gradients"),
    ],
    ids=["branches", "a plain term", "nothing to train", "differs"],
)
def test_what_cannot_be_stacked_is_done_as_local_does_it_and_the_log_says_why(
    tmp_path: Path, stacked: list[int], caplog: Any, method: Method, task: Toy, reason: str
) -> None:
    own = {"task": task, "train": TrainConfig(batch_size=4, lr=0.1)}
    worker = make_worker(tmp_path / "vector", method, **own)
    if isinstance(task, Frozen):
        VectorEngine(worker)
    else:
        one, _, many, _ = both(tmp_path, method, **own)
        assert one.weights.equal(many.weights)
        assert ledger(tmp_path / "local") == ledger(tmp_path / "vector")
    assert stacked == []
    said = [r.message for r in caplog.records if "one by one" in r.message]
    assert len(said) == 1
    assert reason in said[0]


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[FakeRecorder]:
    """Workers record their steps, as on a GPU; what has been recorded since."""
    made: list[FakeRecorder] = []

    class Listed(FakeRecorder):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    begin = VectorEngine.__init__

    def recording(self: VectorEngine, worker: Any) -> None:
        worker.recorder = Listed()
        made.clear()
        begin(self, worker)

    monkeypatch.setattr(VectorEngine, "__init__", recording)
    return made


@pytest.mark.parametrize(
    ("method", "task"),
    [(FedAvg(), EqualPoints()), (MOON(mu=0.5), Random(clients=5)), (SCAFFOLD(), Toy(clients=5))],
    ids=["equal", "a term, unequal, draws", "an adjustment, unequal"],
)
@pytest.mark.parametrize("how", [{"momentum": 0.9}, {"optimizer": "adam", "weight_decay": 0.1, "lr": 0.01}], ids=str)
def test_one_recorded_step_serves_all_groups_and_rounds(
    tmp_path: Path, stacked: list[int], recorders: list[FakeRecorder], method: Method, task: Toy, how: dict[str, Any]
) -> None:
    """Clients without a batch in a step are left as they are, though the recording is of them too."""
    train = TrainConfig(**{"batch_size": 4, "lr": 0.02, "epochs": 4, **how})
    one, seen, many, seen_too = both(tmp_path, method, RoundConfig(rounds=3), task=task, train=train)
    assert stacked == [5] * 3
    assert_close(one.weights, many.weights)
    for a, b in zip(seen.of("train"), seen_too.of("train")):
        assert a["loss"] == pytest.approx(b["loss"], abs=CLOSE)
    graphs = [graph for recorder in recorders for graph in recorder.made]
    forms = 1 if isinstance(task, EqualPoints) else 5  # of 2 and 4 clients, with and without one that waits, and of 5
    kinds = 2 if isinstance(method, MOON) else 1  # a client's first round has no contrast
    assert forms <= len(graphs) <= forms * kinds
    assert sum(graph.replays for graph in graphs) > 20


def test_on_a_cpu_long_steps_are_made_one_by_one(
    tmp_path: Path, stacked: list[int], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stacked convolution, for one, takes a CPU longer than several alone."""
    monkeypatch.setattr(
        vector, "LONG", measured_step(make_worker(tmp_path / "sized", FedAvg(), Points())).operations - 1
    )
    one, _, many, _ = both(tmp_path, FedAvg(), task=Points())
    assert stacked == []
    assert one.weights.equal(many.weights)
    assert sum("which a CPU makes faster so" in r.message for r in caplog.records) == 1


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
