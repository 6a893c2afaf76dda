"""What of a training step is stacked, to what end, and what is left alone for which reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.library import _scoped_library
from torch.nn import functional as F

from fedreel.config import RoundConfig, TrainConfig
from fedreel.core.method import Method
from fedreel.core.task import ClientData, Outputs, Population, Tensors
from fedreel.core.weights import Weights
from fedreel.engines import vector
from fedreel.engines.local import LocalEngine
from fedreel.engines.stacked.step import ChannelsApart
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
    Eight,
    EqualPoints,
    Frozen,
    Maps,
    Masks,
    Points,
    assert_close,
    assert_dropped_three_in_ten,
    both,
    count_stacked,
    federate,
    ledger,
    masks,
)
from support.toy import Random, Toy, ToyPopulation, make_worker, orders, results


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
class Different(Points):
    """Whatever the reason: a stacked step gives something else."""

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        stacked = torch._C._functorch.is_functorch_wrapped_tensor(outputs.logits)
        return super().loss(outputs, batch) * (1.1 if stacked else 1.0)


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return count_stacked(monkeypatch)


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


class Counting(FedProx):
    asked: ClassVar[list[str]] = []

    def terms(self, client: Any) -> Any:
        self.asked.append(client.name)
        return super().terms(client)


def test_terms_are_asked_for_once_a_client_and_the_received_model_is_not_copied(
    tmp_path: Path, stacked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    take = Weights.take
    monkeypatch.setattr(Weights, "take", lambda self, layout: copied.append(1) or take(self, layout))
    Counting.asked.clear()
    engine = VectorEngine(make_worker(tmp_path, Counting(mu=0.1), EqualPoints()))
    sent = engine.blueprint.start.clone()
    assert len(results(engine, orders(sent, [*engine.clients]))) == 5
    copied.clear()
    asks = [engine._plain_ask(order) for order in orders(sent, [*engine.clients], 2)]
    assert stacked == [5]
    assert Counting.asked == [*engine.clients] * 2
    assert copied == []
    flats = {id(flat) for flat in sent.flat.values()}
    assert all({id(t) for t in ask.given.values()} == flats for ask in asks)


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


@pytest.mark.parametrize("task", [EqualPoints(clients=8), Random(clients=8)], ids=["equal", "unequal, draws"])
def test_a_smaller_group_is_trained_where_a_larger_one_was(
    tmp_path: Path, stacked: list[int], recorders: list[FakeRecorder], task: Toy
) -> None:
    """And by the same recordings; not by those of many more."""
    train = TrainConfig(batch_size=4, lr=0.02, epochs=4, momentum=0.9)
    engine = VectorEngine(make_worker(tmp_path / "vector", FedAvg(), task, train))
    local = LocalEngine(make_worker(tmp_path / "local", FedAvg(), task, train))
    start, made = engine.blueprint.start.clone(), []
    for first, clients in ((1, 8), (11, 6), (21, 4), (31, 8), (41, 3)):
        wanted = orders(start, [f"c{i}" for i in range(8 - clients, 8)], first)
        for one, other in zip(results(local, wanted), results(engine, wanted), strict=True):
            assert_close(one.weights, other.weights)
            assert one.loss == pytest.approx(other.loss, abs=CLOSE)
        made.append(len(recorders))
    assert stacked == [8, 6, 4, 8, 3]
    assert made == [1, 1, 1, 1, 2]


def test_a_few_places_serve_groups_that_grow_and_shrink(
    tmp_path: Path, stacked: list[int], recorders: list[FakeRecorder]
) -> None:
    """As MOON's do: of those whom it has seen before there are more in every round, of the others fewer. The first
    place is for as many as came, the next for 16: all others fit in there, and take steps of three quarters or all."""
    train = TrainConfig(batch_size=4, lr=0.02, epochs=4)
    task = EqualPoints(clients=14)
    engine = VectorEngine(make_worker(tmp_path / "vector", FedAvg(), task, train))
    local = LocalEngine(make_worker(tmp_path / "local", FedAvg(), task, train))
    start, made = engine.blueprint.start.clone(), []
    for first, clients in ((1, 2), (21, 9), (41, 12), (61, 14), (81, 11)):
        wanted = orders(start, [f"c{i}" for i in range(clients)], first)
        for one, other in zip(results(local, wanted), results(engine, wanted), strict=True):
            assert_close(one.weights, other.weights)
        made.append(len(recorders))
    assert stacked == [2, 9, 12, 14, 11]
    assert made == [1, 2, 2, 2, 2]
    assert {len(graph.inputs[0]) for graph in recorders[1].made} == {12, 16}


def test_of_a_few_clients_every_step_that_comes_again_is_recorded(
    tmp_path: Path, recorders: list[FakeRecorder]
) -> None:
    """2, 3 and 5 clients with batches of 6, then 2 that have another 6, 2 with 2 and one with 4: six steps. After some
    rounds none is made in Python; and none is of a client who takes no part in it."""
    train = TrainConfig(batch_size=6, lr=0.02, momentum=0.9)
    engine = VectorEngine(make_worker(tmp_path / "vector", FedAvg(), Points(), train))
    local = LocalEngine(make_worker(tmp_path / "local", FedAvg(), Points(), train))
    start, made = engine.blueprint.start.clone(), []
    for first in range(1, 9):
        wanted = orders(start, [*engine.clients], first)
        for one, other in zip(results(local, wanted), results(engine, wanted), strict=True):
            assert_close(one.weights, other.weights)
        made.append(sum(graph.replays for graph in recorders[0].made))
    steps = [after - before for before, after in pairwise(made)]
    assert steps[-1] == steps[-2] == 6
    assert {len(graph.inputs) for graph in recorders[0].made} == {2}  # no column says who takes part


@dataclass(frozen=True)
class Threes(Points):
    """Of 15 clients the first three have 8 points, the next three 14, and so on: batches of 6 end in 2."""

    clients: int = 15

    def population(self, data: Any, seed: int) -> Population:
        return InThrees(self, seed)


class InThrees(ToyPopulation):
    def __init__(self, task: Threes, seed: int) -> None:
        super().__init__(task.clients, seed)

    def data(self, client: str) -> ClientData:
        whole, three = super().data(client), int(client[1:]) // 3
        x, y = (t.repeat(8, *[1] * (t.dim() - 1))[: 8 + 6 * three + three // 3] for t in whole.train.tensors)
        return ClientData(Tensors((x, y)), whole.test, whole.numbers)


def test_of_many_clients_steps_of_those_are_recorded_who_take_them_in_every_round(
    tmp_path: Path, recorders: list[FakeRecorder]
) -> None:
    """3, 6, 9, 12 and 15 of them have batches of 6; the last ones, of 2 or 3, are of 9 and of 6. A quarter of 15 would
    be 4. Other clients, of whom a few come again, are trained rightly too."""
    train, task = TrainConfig(batch_size=6, lr=0.02, momentum=0.9), Threes()
    engine = VectorEngine(make_worker(tmp_path / "vector", FedAvg(), task, train))
    local = LocalEngine(make_worker(tmp_path / "local", FedAvg(), task, train))
    start, made, some = engine.blueprint.start.clone(), [], [f"c{i}" for i in range(2, 14)]
    for first in range(0, 2000, 100):
        wanted = orders(start, some if first in (500, 600, 900) else [*engine.clients], first)
        for one, other in zip(results(local, wanted), results(engine, wanted), strict=True):
            assert_close(one.weights, other.weights)
            assert one.loss == pytest.approx(other.loss, abs=CLOSE)
        made.append([graph.replays for graph in recorders[0].made])
    assert len(recorders) == 1
    replayed = [after - before for before, after in zip(made[-2], made[-1], strict=True)]
    widths = [len(graph.inputs[0]) for graph, times in zip(recorders[0].made, replayed) for _ in range(times)]
    assert sorted(widths) == [3, 6, 6, 9, 9, 12, 15]


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


@dataclass(frozen=True)
class Wider(EqualPoints):
    """Each client's points have a column more than the last one's, which nobody looks at."""

    def population(self, data: Any, seed: int) -> Population:
        return _Wider(self, seed)

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        return super().forward(model, (batch[0][:, :2], batch[1]))


class _Wider(Eight):
    def data(self, client: str) -> ClientData:
        whole = super().data(client)
        x, y = whole.train.tensors
        return ClientData(Tensors((F.pad(x, (0, int(client[1:]))), y)), whole.test, whole.numbers)


def test_clients_whose_batches_never_have_the_same_shape_are_trained_one_by_one(
    tmp_path: Path, stacked: list[int], caplog: Any
) -> None:
    own = {"task": Wider(), "train": TrainConfig(batch_size=4, lr=0.1, epochs=3)}
    one, _, many, _ = both(tmp_path, FedAvg(), **own)
    assert stacked == [5]  # tried once
    assert one.weights.equal(many.weights)
    assert ledger(tmp_path / "local") == ledger(tmp_path / "vector")
    assert sum("have different shapes" in r.message for r in caplog.records) == 1


@dataclass(frozen=True)
class OneLong(EqualPoints):
    """c0 has six times as many points as the others."""

    def population(self, data: Any, seed: int) -> Population:
        return _OneLong(self, seed)


class _OneLong(Eight):
    def data(self, client: str) -> ClientData:
        whole = super().data(client)
        tensors = tuple(t.repeat(6, *[1] * (t.dim() - 1)) if client == "c0" else t for t in whole.train.tensors)
        return ClientData(Tensors(tensors), whole.test, whole.numbers)


def test_a_client_with_many_more_batches_does_not_keep_the_others_from_being_stacked(
    tmp_path: Path, stacked: list[int], caplog: Any
) -> None:
    """It takes its first 20 steps alone; then all take four together."""
    own = {"task": OneLong(), "train": TrainConfig(batch_size=2, lr=0.1)}
    one, _, many, _ = both(tmp_path, FedAvg(), RoundConfig(rounds=2), **own)
    assert stacked == [5, 5]
    assert_close(one.weights, many.weights)
    assert not [r for r in caplog.records if "one by one" in r.message]


@pytest.mark.parametrize("teacher", [True, False])
def test_channels_of_a_teacher_s_convolutions_lie_apart(teacher: bool) -> None:
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    with ChannelsApart(), torch.set_grad_enabled(not teacher):
        found = layer(x)
    assert found.is_contiguous() == teacher
    assert torch.equal(found, layer(x))


@pytest.fixture
def batch_norm_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's derivative of cuDNN's batch norm, which asks for gradients in the layout of the maps; cuDNN's own part
    is played by what there is for CPUs."""
    aten = torch.ops.aten

    def forward(x: Tensor, *given: Any) -> tuple[Tensor, ...]:
        return *aten.native_batch_norm.default(x, *given), x.new_empty(0, dtype=torch.uint8)

    def backward(x: Tensor, grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
        *known, eps, _ = given
        found: tuple[Tensor, ...] = aten.native_batch_norm_backward.default(grad, x, *known, True, eps, [True] * 3)
        return found

    def batch_norm(*given: Any) -> Tensor:
        return torch.cudnn_batch_norm(*given[:-1])[0] if given[5] else plain(*given)

    plain = torch.batch_norm
    with _scoped_library("aten", "IMPL") as library:
        library.impl("cudnn_batch_norm", forward, "CPU")
        library.impl("cudnn_batch_norm_backward", backward, "CPU")
        monkeypatch.setattr(torch, "batch_norm", batch_norm)
        yield


@pytest.mark.parametrize("method", [FedAvg(), MOON(mu=0.5)], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.usefixtures("batch_norm_of_a_gpu")
def test_norms_of_maps_whose_channels_lie_together_are_stacked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: Method, norm: str
) -> None:
    one, _, many, _ = both(tmp_path, method, RoundConfig(rounds=2), task=Maps(norm=norm))
    assert "not stacked" not in caplog.text
    assert_close(one.weights, many.weights)
