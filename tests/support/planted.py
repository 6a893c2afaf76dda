"""Clients planted in communities, an engine that keeps the orders and loses some, and means taken by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedreel.core.federation import Federation
from fedreel.core.task import ClientData, Examples, Population, Tensors
from fedreel.core.update import TRAIN, Failure, Order, Update
from fedreel.core.weights import Weights
from fedreel.engines.local import LocalEngine
from fedreel.methods.fedavg import FedAvg
from support.toy import Points, Toy, ToyPopulation, federate, make_worker

Rule = Callable[[Order], bool]


@dataclass(frozen=True)
class Filmed(Tensors):
    """Points for training, and videos that say nothing about them: of the given number of steps, all at one level."""

    level: float = 0.0
    steps: int = 1

    @property
    def videos(self) -> list[torch.Tensor]:
        return [torch.full((self.steps, 1), self.level) for _ in range(len(self))]


@dataclass(frozen=True)
class Planted(Toy):
    """The toy with videos whose distance to the proxy, one step at level 0, is level x steps. Those in `flipped` have
    the opposite labels; with `only` each client has one label alone."""

    levels: tuple[float, ...] = (1.0, 20.0, 1.5, 22.0)
    steps: tuple[int, ...] = ()
    flipped: tuple[str, ...] = ()
    only: tuple[int, ...] = ()

    def population(self, data: Any, seed: int) -> Population:
        return _Planted(self, seed)

    def sequences(self, examples: Examples) -> list[torch.Tensor]:
        return examples.videos if isinstance(examples, Filmed) else super().sequences(examples)

    def public(self, data: Any, seed: int) -> Points:
        return Points((torch.zeros(1, 1), torch.zeros(1)))


class _Planted(ToyPopulation):
    def __init__(self, task: Planted, seed: int) -> None:
        super().__init__(len(task.levels), seed)
        self.task = task

    def data(self, client: str) -> ClientData:
        whole, i = super().data(client), self.clients.index(client)
        x, y = whole.train.tensors
        steps = self.task.steps[i] if self.task.steps else 3
        y = torch.full_like(y, self.task.only[i]) if self.task.only else 1 - y if client in self.task.flipped else y
        train = Filmed((x, y), self.task.levels[i], steps)
        return ClientData(train, whole.test, {"frames": float(len(train) * steps)})


class Noting:
    """An engine that keeps the orders it gets and loses those that a rule names."""

    def __init__(self, inner: LocalEngine, lose: Rule = lambda order: False) -> None:
        self.inner, self.lose, self.slots = inner, lose, 1
        self.clients, self.blueprint = inner.clients, inner.blueprint
        self.orders: list[Order] = []
        self.lost: Order | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, order: Order) -> None:
        if self.lose(order):
            self.lost = order
        else:
            self.inner.submit(order)
        self.orders.append(order)

    def next(self) -> Update | Failure | None:
        if self.lost is None:
            return self.inner.next()
        order, self.lost = self.lost, None
        return Failure(*order.key, order.client, "error", "gone")

    def of(self, kind: str, round: int | None = None) -> list[Order]:
        return [o for o in self.orders if o.kind == kind and round in (None, o.round)]


def watched(
    folder: Path, method: Any, lose: Rule = lambda order: False, **options: Any
) -> tuple[Federation, list[Order], Noting]:
    """A run; the training orders of it; the engine, which has all orders."""
    engines: list[Noting] = []

    def wrap(inner: LocalEngine) -> Noting:
        engines.append(Noting(inner, lose))
        return engines[0]

    fed, _ = federate(folder, method, wrap=wrap, **options)
    return fed, engines[0].of(TRAIN), engines[0]


def first_of(client: str, kind: str) -> Rule:
    """The first order of that kind to a client is lost."""
    seen: list[str] = []

    def lose(order: Order) -> bool:
        if (order.client, order.kind) != (client, kind):
            return False
        seen.append(client)
        return len(seen) == 1

    return lose


def trained(folder: Path, task: Toy, models: dict[str, Weights], round: int = 1) -> dict[str, Update]:
    """What plain training makes of each client's model, by orders of our own."""
    worker = make_worker(folder, FedAvg(), task)
    return {c: worker.execute(Order(round, i + 1, c, TRAIN, {"global": w})) for i, (c, w) in enumerate(models.items())}


def mean(updates: list[Update], by: Callable[[Update], float]) -> dict[str, torch.Tensor]:
    """sum_k (v_k / v) w_k, in double precision."""
    v = sum(map(by, updates))
    first = updates[0].weights
    return {n: sum(by(u) / v * u.weights[n].double() for u in updates) for n in first}


def close(got: Weights, expected: dict[str, torch.Tensor], only: str = "") -> bool:
    floating = [n for n in got if n.startswith(only) and got[n].is_floating_point()]
    return all(torch.allclose(got[n].double(), expected[n], atol=1e-6) for n in floating)


def part(weights: Weights, name: str) -> Weights:
    return weights.take(weights.layout.only(lambda t: t.name.startswith(name)))


def members(fed: Federation) -> list[int]:
    return [fed.memory["members"][c] for c in fed.clients]
