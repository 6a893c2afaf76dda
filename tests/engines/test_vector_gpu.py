"""The stacked engine on a GPU: steps are recorded, and what comes of them is what the local engine gives."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.capture import Recorder
from fedreel.core.job import Job
from fedreel.core.method import Method
from fedreel.core.task import Outputs
from fedreel.engines.auto import AutoEngine
from fedreel.engines.local import LocalEngine
from fedreel.engines.stacked import convolutions, fastest
from fedreel.engines.stacked.convolutions import convolution
from fedreel.engines.stacked.training import StackedTraining
from fedreel.engines.streams import StreamsEngine
from fedreel.engines.vector import VectorEngine
from fedreel.machine import device
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedprox import FedProx
from fedreel.methods.fsar import FSAR
from fedreel.methods.moon import MOON
from fedreel.methods.scaffold import SCAFFOLD
from support.lock_step import Counted, Seeded, alone, assert_same_end, together
from support.stacked import EqualPoints, Maps, Masks, Points, assert_close, assert_dropped_three_in_ten, both, masks
from support.toy import Random, Toy, make_worker, orders, results

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NEAR = 1e-4  # sums are taken in another order


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In whole runs too, which would allow TF32."""
    monkeypatch.setattr(device, "_set_up", lambda device: None)
    with device.full_precision():
        yield


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each attempt to record a step succeeded."""
    found: list[bool] = []
    record = Recorder.record

    def counting(self: Recorder, *args: Any) -> Any:
        recording = record(self, *args)
        found.append(recording is not None)
        return recording

    monkeypatch.setattr(Recorder, "record", counting)
    return found


@pytest.mark.parametrize(
    "method",
    [FedAvg(), FedProx(mu=0.3), MOON(mu=0.5), FSAR(mu=0.1, blocks=2), SCAFFOLD()],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.parametrize("task", [EqualPoints(clients=8), Toy(clients=5)], ids=["equal", "batch norm, unequal"])
@pytest.mark.parametrize("how", [{"momentum": 0.9}, {"optimizer": "adam", "weight_decay": 0.1, "lr": 0.01}], ids=str)
def test_recorded_steps_of_stacked_clients_end_as_local(
    tmp_path: Path, recorded: list[bool], method: Method, task: Any, how: dict[str, Any]
) -> None:
    train = TrainConfig(**{"batch_size": 4, "lr": 0.02, "epochs": 4, **how})
    one, seen, many, seen_too = both(tmp_path, method, RoundConfig(rounds=3), task=task, train=train, device="cuda")
    assert_close(one.weights, many.weights, NEAR)
    for a, b in zip(seen.of("train"), seen_too.of("train")):
        assert a["loss"] == pytest.approx(b["loss"], abs=NEAR)
    assert recorded
    assert all(recorded)


def test_clients_in_two_halves_end_as_local(tmp_path: Path) -> None:
    """So many clients with so few steps are trained in two halves, the second while the first is answered."""
    one, _, many, _ = both(tmp_path, FedAvg(), RoundConfig(rounds=4), task=EqualPoints(clients=50), device="cuda")
    assert_close(one.weights, many.weights, NEAR)


def test_clients_that_draw_their_own_random_numbers_end_as_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do not in earnest; but so every number can be compared."""
    begin = StackedTraining.__init__
    monkeypatch.setattr(StackedTraining, "__init__", lambda self, worker, *_: begin(self, worker, None, True))
    one, _, many, _ = both(tmp_path, FedAvg(), RoundConfig(rounds=2), task=Random(clients=5), device="cuda")
    assert_close(one.weights, many.weights, NEAR)


def test_a_client_s_own_mask_is_that_of_the_local_engine(tmp_path: Path) -> None:
    how = TrainConfig(batch_size=8, lr=0.7)
    worker = make_worker(tmp_path / "vector", FedAvg(), Masks(), how, device="cuda")
    local = LocalEngine(make_worker(tmp_path / "local", FedAvg(), Masks(), how, device="cuda"))
    wanted = orders(local.blueprint.start.clone(), list(worker.population.clients))
    alone = -torch.stack([u.weights["backbone.weight"][0] for u in results(local, wanted)]).cpu().round()
    assert torch.equal(masks(worker, own_draws=True), alone)


def test_recorded_random_numbers_are_as_many_and_differ_from_step_to_step(tmp_path: Path, recorded: list[bool]) -> None:
    worker = make_worker(tmp_path, FedAvg(), Masks(), TrainConfig(batch_size=8, lr=0.7), device="cuda")
    assert_dropped_three_in_ten(masks(worker, Recorder))
    worker.config = replace(worker.config, epochs=20)
    engine = VectorEngine(worker)
    engine._training = StackedTraining(worker, Recorder, own_draws=False)
    wanted = orders(engine.blueprint.start.clone(), list(worker.population.clients))
    kept = -torch.stack([u.weights["backbone.weight"][0] for u in results(engine, wanted)]).cpu()  # of 20 steps
    assert all(recorded)
    assert recorded
    assert abs(float(kept.mean()) - 14) < 0.3  # 20 draws of 0.7, a deviation of 2.05, and 2,000 of these
    assert 1.8 < float(kept.std()) < 2.3  # the same mask in every step would give 9.2


@pytest.mark.parametrize(
    ("method", "task"),
    [(FedAvg(), Points()), (MOON(mu=0.5), Points()), (FSAR(blocks=1), Toy(clients=5))],
    ids=["fedavg", "moon", "fsar"],
)
@pytest.mark.parametrize("rates", [(0.05, 0.05, 0.05), (0.05, 0.02, 0.01)], ids=["one rate", "rates"])
def test_runs_in_lock_step_end_as_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recorded: list[bool],
    method: Method,
    task: Toy,
    rates: tuple[float, ...],
) -> None:
    """The first, in whose place all are trained, ends before the others. Batches of two points, normed by themselves,
    would make 0.4 of a difference of 1e-7; these make 2e-5 of it."""
    counted, steady = Counted(monkeypatch), {"schedule": "constant", "epochs": 4, "batch_size": 4}
    jobs = [
        Seeded(seed, task, method, rounds=rounds, device="cuda", train={**steady, "lr": lr})
        for seed, (rounds, lr) in enumerate(zip((3, 6, 6), rates))
    ]
    one = alone(jobs, tmp_path)
    counted.groups.clear()
    other, outcomes = together(jobs, tmp_path, device=torch.device("cuda"))
    assert [o.error for o in outcomes] == [None] * 3
    assert [*counted] == [(5, 5, 5)] * 3 + [(5, 5)] * 3
    for a, b in zip(one, other):
        assert_same_end(a, b, 10 * NEAR)
    assert recorded
    assert all(recorded)


@pytest.mark.parametrize(
    ("kernel", "size", "how"),
    [(1, (9, 8), {}), ((9, 1), (20, 5), {"padding": (4, 0), "stride": (2, 1)}), (3, (4, 4), {"padding": 1})],
    ids=["of one place", "along time", "larger than a map"],
)
def test_convolutions_and_their_derivatives_are_the_fastest_of_equal_ones(
    monkeypatch: pytest.MonkeyPatch, kernel: Any, size: tuple[int, int], how: dict[str, Any]
) -> None:
    timed: list[float] = []
    measure = fastest.milliseconds
    monkeypatch.setattr(fastest, "milliseconds", lambda way: (timed.append(measure(way)), timed[-1])[1])
    monkeypatch.setattr(convolutions, "fastest", fastest.Fastest())
    torch.manual_seed(0)
    kinds = [nn.Conv2d(16, 32, kernel, **how).cuda() for _ in range(3)]
    own = [torch.stack([p.detach() for p in ps]) for ps in zip(*(k.parameters() for k in kinds))]
    maps = torch.randn(3, 4, 16, *size, device="cuda")

    def loss(convolution: Any, own: list[Tensor], maps: Tensor) -> Tensor:
        return convolution(maps, *own, **how).sin().sum()

    theirs, ours = (vmap(grad(partial(loss, made), argnums=(0, 1)))(own, maps) for made in (F.conv2d, convolution))
    for _ in range(2):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
        ours = vmap(grad(partial(loss, convolution), argnums=(0, 1)))(own, maps)
    assert len(timed) == 4  # by maps and by weight, in two ways
    assert all(timed)


def test_many_rounds_take_no_more_memory_than_a_few(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, FedAvg(), EqualPoints(clients=40), device="cuda")
    engine, used = VectorEngine(worker), []
    start = engine.blueprint.start.clone()
    for i in range(12):
        assert len(results(engine, orders(start, list(worker.population.clients), first=1 + 40 * i))) == 40
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated())
    assert used[-1] <= used[3]


@dataclass(frozen=True)
class Pictures(EqualPoints):
    """Points as pictures, for convolutions: one that is made a matrix product, and one that is not."""

    def model(self) -> nn.Module:
        layers = nn.Conv2d(2, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        return nn.Sequential(OrderedDict(backbone=nn.Sequential(*layers, nn.LayerNorm(32)), head=nn.Linear(32, 2)))

    def forward(self, model: Any, batch: tuple[Tensor, Tensor]) -> Outputs:
        shades = torch.linspace(0, 1, 64, device=batch[0].device).view(8, 8)
        features = model.backbone(batch[0][:, :, None, None] * shades)
        return Outputs(features, model.head(features))


@pytest.mark.parametrize("method", [FedAvg(), MOON(mu=0.5)], ids=lambda m: type(m).__name__)
def test_convolutions_are_stacked_with_a_teacher_s_too(
    tmp_path: Path, recorded: list[bool], caplog: pytest.LogCaptureFixture, method: Method
) -> None:
    task, train = Pictures(clients=8), TrainConfig(batch_size=4, lr=0.02, epochs=4)
    one, _, many, _ = both(tmp_path, method, RoundConfig(rounds=3), task=task, train=train, device="cuda")
    assert "not stacked" not in caplog.text
    assert_close(one.weights, many.weights, NEAR)
    assert all(recorded)


@pytest.mark.parametrize("method", [FedAvg(), MOON(mu=0.5)], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_norms_of_maps_whose_channels_lie_together_are_stacked(
    tmp_path: Path, recorded: list[bool], caplog: pytest.LogCaptureFixture, method: Method, norm: str
) -> None:
    task, train = Maps(clients=8, norm=norm), TrainConfig(batch_size=4, lr=0.02, epochs=4)
    one, _, many, _ = both(tmp_path, method, RoundConfig(rounds=3), task=task, train=train, device="cuda")
    assert "not stacked" not in caplog.text
    assert_close(one.weights, many.weights, NEAR)
    assert all(recorded)


def test_groups_of_another_size_in_every_round_end_as_local(
    tmp_path: Path, recorded: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    """Of ten clients six train: those that have done so before make a step of their own kind."""
    how = {"task": EqualPoints(clients=10), "train": TrainConfig(batch_size=4, lr=0.02, epochs=4), "device": "cuda"}
    one, _, many, _ = both(tmp_path, MOON(mu=0.5), RoundConfig(rounds=6, clients=6), **how)
    assert "not stacked" not in caplog.text
    assert_close(one.weights, many.weights, NEAR)
    assert all(recorded)


@pytest.mark.parametrize(("engine", "chosen"), [(AutoEngine, "vector"), (StreamsEngine, "local")])
def test_small_steps_are_stacked_and_not_made_side_by_side(tmp_path: Path, engine: Any, chosen: str) -> None:
    named = {"task": {"name": "toy"}, "method": {"name": "fedavg"}, "engine": {"name": "auto"}}
    recipe = Recipe(system="toy", device="cuda", train=TrainConfig(batch_size=4), round=RoundConfig(rounds=2), **named)
    with closing(engine.begin(Job(recipe, Toy(clients=4), FedAvg(), torch.device("cuda"), tmp_path))) as begun:
        assert begun.chosen == chosen
        assert "billion operations" in begun.why
