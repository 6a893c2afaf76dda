"""Tasks whose clients can be stacked, and the same run on the stacked and on the local engine."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.config import RoundConfig
from fedreel.core.client import Worker
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.task import ClientData, Outputs, Population, Tensors
from fedreel.core.weights import Weights
from fedreel.engines.local import LocalEngine
from fedreel.engines.stacked.training import StackedTraining, Trained
from fedreel.engines.vector import VectorEngine
from support.toy import Notes, Toy, ToyPopulation, make_worker, orders, results

CLOSE = 1e-5


class Net(nn.Module):
    """A frozen layer, a buffer that nobody changes, a parameter spared the weight decay, one used twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 2)
        self.again = nn.Linear(width, width, bias=False)
        self.again.weight = self.backbone[2].weight
        self.backbone[0].bias.requires_grad_(False)
        self.head.bias.no_decay = True  # type: ignore[attr-defined]
        self.register_buffer("scale", torch.full((width,), 1.5))


@dataclass(frozen=True)
class Points(Toy):
    """The toy without batch norm: c0 has 8 training points, each client 4 more than the one before, so that batches of
    6 end in 2, 6, 4, 2 and 6."""

    clients: int = 5

    def model(self) -> nn.Module:
        return Net(self.width)

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        features = model.again(model.backbone(batch[0]) * model.scale)
        return Outputs(features, model.head(features))


@dataclass(frozen=True)
class EqualPoints(Points):
    """All clients have eight points; `bad` says whose labels cannot be, `poison` whose points are not numbers."""

    bad: str = ""
    poison: str = ""

    def population(self, data: Any, seed: int) -> Population:
        return Eight(self, seed)


class Eight(ToyPopulation):
    def __init__(self, task: EqualPoints, seed: int) -> None:
        super().__init__(task.clients, seed)
        self.task = task

    def data(self, client: str) -> ClientData:
        whole = super().data(client)
        x, y = (t[:8].clone() for t in whole.train.tensors)
        if client == self.task.poison:
            x[3] = torch.inf
        if client == self.task.bad:
            y[3] = 7
        return ClientData(Tensors((x, y)), whole.test, {"frames": 80.0})


class Shortcut(nn.Module):
    """Maps of a 1 x 1 convolution, taken as a product over channels, beside those of a convolution: channels of the
    ones lie together in memory, and as what comes of both is differentiated, those of the gradient lie apart."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.direct, self.norm, self.beside = nn.Linear(2, 4), norm, nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        direct = self.direct(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.relu(self.beside(x) + self.norm(direct)).mean(dim=(2, 3))


@dataclass(frozen=True)
class Maps(EqualPoints):
    """Points as maps of 2 x 3, that go through a batch norm, or one of groups which sees a half of the channels."""

    norm: str = "batch"

    def model(self) -> nn.Module:
        norm = nn.BatchNorm2d(4) if self.norm == "batch" else nn.Sequential(_Half(), nn.GroupNorm(1, 2), _Twice())
        return nn.Sequential(OrderedDict(backbone=Shortcut(norm), head=nn.Linear(4, 2)))

    def forward(self, model: Any, batch: tuple[Tensor, Tensor]) -> Outputs:
        shades = torch.linspace(0, 1, 6, device=batch[0].device).view(2, 3)
        features = model.backbone(batch[0][:, :, None, None] * shades)
        return Outputs(features, model.head(features))


class _Half(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:
        return maps[:, :2]


class _Twice(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:
        return torch.cat([maps, maps], dim=1)


class Mask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(50, 1, bias=False)
        self.head = nn.Identity()
        self.backbone.weight.data.zero_()


@dataclass(frozen=True)
class Masks(EqualPoints):
    """The gradient of its loss is the mask: a step of rate 0.7 takes 1 from the weights that are kept."""

    clients: int = 40

    def model(self) -> nn.Module:
        return Mask()

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        seen = model.backbone(F.dropout(torch.ones_like(batch[0][:1, :1].expand(1, 50)), 0.3, model.training))
        return Outputs(seen, seen)

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        return outputs.logits.sum()


def masks(worker: Worker, recorder: Any = None, own_draws: bool = False) -> Tensor:
    """Which weights each of 40 clients kept in a step whose random numbers are drawn for all at once, as on a GPU, or
    by each for itself."""
    engine = VectorEngine(worker)
    engine._training = StackedTraining(worker, recorder, own_draws)
    wanted = orders(engine.blueprint.start.clone(), list(worker.population.clients))
    moved = torch.stack([u.weights["backbone.weight"][0] for u in results(engine, wanted)]).cpu()
    torch.testing.assert_close(moved, moved.round(), atol=CLOSE, rtol=0)
    return -moved.round()


def assert_dropped_three_in_ten(found: Tensor) -> None:
    """2,000 draws of 0.7: 1,400 on average, with a deviation of 20.5. And nobody has anybody else's."""
    assert set(found.unique().tolist()) == {0.0, 1.0}
    assert abs(float(found.sum()) - 1400) < 80
    assert len(found.unique(dim=0)) == 40


def federate(folder: Path, engine: type[LocalEngine], method: Method, config: RoundConfig | None = None, **own: Any):
    config = config or RoundConfig(rounds=3)
    worker = make_worker(folder, method, rounds=config.rounds, **own)
    carrier, notes = engine(worker), Notes()
    fed = Federation(carrier, method, config, 0, watchers=[notes])
    method.run(fed)
    carrier.close()
    return fed, notes


def both(folder: Path, method: Method, config: RoundConfig | None = None, **own: Any):
    one = federate(folder / "local", LocalEngine, method, config, **own)
    return *one, *federate(folder / "vector", VectorEngine, method, config, **own)


def assert_close(a: Weights, b: Weights, most: float = CLOSE) -> None:
    assert list(a) == list(b)
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=most, rtol=most)


@dataclass(frozen=True)
class Frozen(Points):
    def model(self) -> nn.Module:
        return super().model().requires_grad_(False)


def count_stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients every stacked training has had since."""
    sizes: list[int] = []
    fit = StackedTraining.fit

    def counting(self: StackedTraining, asks: Any) -> Trained:
        sizes.append(len(asks))
        return fit(self, asks)

    monkeypatch.setattr(StackedTraining, "fit", counting)
    return sizes


def ledger(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("time", "times", "prev")} for row in rows]
