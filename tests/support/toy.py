"""A tiny task for tests: points in the plane, a small net with batch norm, four clients. Runs in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.config import RoundConfig, TrainConfig, TransferConfig
from fedreel.core.abilities import Blocks, Contrastable, Sequences, ServerObjective, Supervision, Temporal
from fedreel.core.batchnorm import statistics_kept
from fedreel.core.client import Worker
from fedreel.core.exchange import Ledger, Policy
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.server import GLOBAL, Watcher
from fedreel.core.server_training import ServerTraining
from fedreel.core.state import PrivateStore
from fedreel.core.task import EVERYONE, ClientData, Examples, Outputs, Population, Task, Tensors
from fedreel.core.update import TRAIN, Failure, Order, Update
from fedreel.core.weights import TensorInfo, Weights
from fedreel.engines.local import LocalEngine
from fedreel.methods.fedavg import FedAvg


class Points(Tensors):
    """Points with labels."""

    def to(self, device: torch.device) -> Points:
        return Points(super().to(device).tensors)


class ToyPopulation(Population):
    def __init__(self, clients: int, seed: int, here: tuple[str, ...] | None = None) -> None:
        everyone = tuple(f"c{i}" for i in range(clients))
        self.clients = everyone if here is None else here
        self._data = {}
        for i, name in enumerate(everyone):
            if name not in self.clients:
                continue
            g = torch.Generator().manual_seed(1000 * seed + i)
            x = torch.randn(12 + 4 * i, 2, generator=g) + 0.3 * i
            y = ((x[:, 0] * x[:, 1]) > 0.1 * i).long()
            self._data[name] = (Points((x[:-4], y[:-4])), Points((x[-4:], y[-4:])))

    def data(self, client: str) -> ClientData:
        if client == EVERYONE:
            parts = [Points(Tensors.join(p).tensors) for p in zip(*self._data.values())]
            return ClientData(parts[0], parts[1], {"frames": 1.0})
        train, test = self._data[client]
        return ClientData(train, test, {"frames": float(10 * len(train))})

    def describe(self) -> dict[str, Any]:
        counts = {c: [int((t.tensors[1] == k).sum()) for k in (0, 1)] for c, (t, _) in self._data.items()}
        return {"classes": ["no", "yes"], "train": counts, "test": counts}


def _clients_there(data: Any) -> tuple[str, ...] | None:
    """A folder with a file `clients.txt` holds only those clients: a site."""
    file = Path(data.source) / "clients.txt" if data is not None else None
    return tuple(file.read_text().split()) if file is not None and file.exists() else None


class ToyNet(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Tanh())
        self.head = nn.Linear(width, 2)


@dataclass(frozen=True)
class Toy(Task, Temporal, Contrastable, Sequences, Blocks):
    sends: ClassVar = {"frames": "count"}
    metrics: ClassVar = ("top1", "score")
    temperature: ClassVar = 0.5
    clients: int = 4
    width: int = 5

    def model(self) -> nn.Module:
        return ToyNet(self.width)

    def population(self, data: Any, seed: int) -> Population:
        return ToyPopulation(self.clients, seed, _clients_there(data))

    def public(self, data: Any, seed: int) -> Points:
        return Points((torch.full((1, 2), -1.0), torch.zeros(1, dtype=torch.long)))

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        features = model.backbone(batch[0])
        return Outputs(features, model.head(features))

    def temporal_distribution(self, outputs: Outputs, bins: int) -> Tensor:
        """The two labels stand for the first two classes."""
        return F.pad(outputs.logits.softmax(1), (0, bins**2 - 2))

    def temporal_counts(self, examples: Examples, bins: int) -> Tensor:
        return torch.bincount(examples.tensors[1], minlength=bins**2).float()  # type: ignore[attr-defined]

    def sample(self, examples: Examples, share: float) -> dict[str, Tensor]:
        points, labels = (t[:2] for t in examples.tensors)  # type: ignore[attr-defined]
        return {"video": points, "words": labels, "spans": torch.zeros(len(labels)), "times": torch.ones(len(labels))}

    def categories(self, examples: Examples) -> int:
        return len(torch.unique(examples.tensors[1]))  # type: ignore[attr-defined]

    def server_objective(self, what: Supervision, examples: Examples, share: float) -> ServerObjective:
        """The server's own points: the label is whether the first coordinate is the larger one."""
        points = torch.randn(max(2, int(12 * share)), 2, generator=torch.Generator().manual_seed(7))
        return ServerObjective(self.model, self, Tensors((points, (points[:, 0] > points[:, 1]).long())))

    def vectors(self, model: nn.Module, samples: Tensor) -> Tensor:
        return model.backbone(samples)

    def sequences(self, examples: Examples) -> list[Tensor]:
        """Each point as a video of two steps, one coordinate in each."""
        return [point[:, None] for point in examples.tensors[0]]  # type: ignore[attr-defined]

    def topics(self, examples: Examples) -> Tensor:
        """How many points there are of each label."""
        return torch.bincount(examples.tensors[1].long(), minlength=2)  # type: ignore[attr-defined]

    def check_views(self) -> None:
        """Outputs count as projections."""

    def streams(self, lower: nn.Module, upper: nn.Module, batch: tuple[Tensor, Tensor], blocks: int) -> list[Outputs]:
        """The backbone counts as the only block."""
        with torch.no_grad(), statistics_kept(lower):
            features = lower.backbone(batch[0])
        return [Outputs(features, upper.head(features))] * blocks

    def check_blocks(self) -> None:
        """There is one."""

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(outputs.logits, batch[1])

    def evaluate(self, model: nn.Module, examples: Tensors, batch_size: int) -> dict[str, float]:
        x, y = examples.tensors[:2]
        logits = self.forward(model, (x, y)).logits
        top1 = float((logits.argmax(1) == y).float().mean())
        return {"top1": top1, "score": top1, "n": float(len(y))}


@dataclass(frozen=True)
class Random(Toy):
    """Draws in every step, in front of the model and within it."""

    def augment(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        features = F.dropout(model.backbone(batch[0]), 0.3, model.training)
        return Outputs(features, model.head(features))


class PlainNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, width), nn.Tanh())
        self.head = nn.Linear(width, 2)


@dataclass(frozen=True)
class PlainToy(Toy):
    """Without batch norm."""

    def model(self) -> nn.Module:
        return PlainNet(self.width)


@dataclass(frozen=True)
class HeadStays(FedAvg):
    """Only the backbone travels."""

    def travels(self, tensor: TensorInfo) -> bool:
        return tensor.part == "backbone"


def orders(weights: Weights, clients: list[str], first: int = 1) -> list[Order]:
    """To train, in round 1, as steps from `first`."""
    return [Order(1, first + i, c, TRAIN, {GLOBAL: weights}) for i, c in enumerate(clients)]


def results(engine: LocalEngine, wanted: list[Order]) -> list[Update | Failure]:
    """What an engine makes of orders, in the sequence in which it comes."""
    for order in wanted:
        engine.submit(order)
    found = []
    while (result := engine.next()) is not None:
        found.append(result)
    return found


class Notes(Watcher):
    """Keeps all records."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def record(self, round: int, phase: str, values: Any) -> None:
        self.rows.append({"round": round, "phase": phase, **values})

    def of(self, phase: str) -> list[dict[str, Any]]:
        return [r for r in self.rows if r["phase"] == phase]


def make_worker(
    folder: Path,
    method: Method,
    task: Task | None = None,
    train: TrainConfig | None = None,
    *,
    rounds: int = 3,
    seed: int = 0,
    policy: Policy | None = None,
    transfer: TransferConfig | None = None,
    device: str = "cpu",
) -> Worker:
    task = task or Toy()
    return Worker(
        task,
        method,
        train or TrainConfig(batch_size=4, lr=0.1),
        task.population(None, 0),
        rounds=rounds,
        seed=seed,
        device=torch.device(device),
        store=PrivateStore(folder / "clients"),
        ledger=Ledger(folder / "ledger.jsonl"),
        policy=policy or Policy(),
        transfer=transfer,
    )


def federate(folder: Path, method: Method, *, wrap: Any = None, **options: Any) -> tuple[Federation, Notes]:
    """Run a method on the toy to its end. Options: those of RoundConfig, and task, train, seed, policy, transfer,
    world."""
    own = {k: options.pop(k) for k in ("task", "train", "policy", "transfer") if k in options}
    seed, world = options.pop("seed", 0), options.pop("world", None)
    config = RoundConfig(**{"rounds": 3, **options})
    engine: Any = LocalEngine(make_worker(folder, method, rounds=config.rounds, seed=seed, **own))
    engine = wrap(engine) if wrap else engine
    notes = Notes()
    task = own.get("task") or Toy()
    fed = Federation(
        engine,
        method,
        config,
        seed,
        watchers=[notes],
        public=lambda: task.public(None, 0),
        training=lambda what, share, own: ServerTraining(
            task.server_objective(what, own, share), engine.worker.config, config.rounds, seed, torch.device("cpu")
        ),
        transfer=own.get("transfer"),
        world=world,
    )
    method.run(fed)
    engine.close()
    return fed, notes
