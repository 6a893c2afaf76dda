"""A task that can be worked by hand: two numbers, one in the backbone and one in the head, each pulled to the client's
target by 1/2 (w - target)^2. K steps of rate r lead from w to target + (1 - r)^K (w - target)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedreel.config import TrainConfig
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.task import ClientData, Outputs, Population, Task, Tensors
from support.toy import Notes, federate

TARGETS = {"near": 2.0, "far": 6.0}
SAMPLES = {"near": 1, "far": 3}  # in batches of one: as many steps in an epoch


class _Number(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))


class _Numbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = _Number(), _Number()


class _Pulled(Population):
    clients = tuple(TARGETS)

    def data(self, client: str) -> ClientData:
        examples = Tensors((torch.full((SAMPLES[client], 1), TARGETS[client]),))
        return ClientData(examples, examples, {})


@dataclass(frozen=True)
class Pull(Task):
    metrics: ClassVar = ("backbone", "head")

    def model(self) -> nn.Module:
        return _Numbers()

    def population(self, data: Any, seed: int) -> Population:
        return _Pulled()

    def forward(self, model: nn.Module, batch: tuple[Tensor]) -> Outputs:
        return Outputs(model.backbone.w - batch[0], model.head.w - batch[0])  # type: ignore[union-attr, operator]

    def loss(self, outputs: Outputs, batch: tuple[Tensor]) -> Tensor:
        return 0.5 * (outputs.features.square() + outputs.logits.square()).mean()

    def evaluate(self, model: nn.Module, examples: Any, batch_size: int) -> dict[str, float]:
        (targets,) = examples.tensors
        where = {"backbone": float(model.backbone.w), "head": float(model.head.w)}  # type: ignore[union-attr, arg-type]
        return {**where, "n": float(len(targets))}


def pulled(
    folder: Path, method: Method, rounds: int = 1, momentum: float = 0.0, **options: Any
) -> tuple[float, Federation, Notes]:
    """Where the global backbone is after so many rounds of rate 1/2."""
    train = TrainConfig(batch_size=1, lr=0.5, momentum=momentum)
    fed, notes = federate(folder, method, task=Pull(), train=train, rounds=rounds, **options)
    return float(fed.weights["backbone.w"]), fed, notes


def kept(folder: Path, client: str, name: str) -> float:
    """A number that the client keeps."""
    from fedreel.core.state import PrivateStore

    return float(PrivateStore(folder / "clients").newest(client).tensors[name])
