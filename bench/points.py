"""The smallest task there is: ten parameters, so that what a client costs is what is done around its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.core.task import ClientData, Examples, Outputs, Population, Task, Tensors

CLIENTS = 1000


class People(Population):
    """So many points of each client."""

    def __init__(self, points: int) -> None:
        self.clients = tuple(map(str, range(CLIENTS)))
        self.seen = torch.randn(CLIENTS, points, 4, generator=torch.Generator().manual_seed(0))
        self.wanted = (self.seen[..., 0] > 0).long()

    def data(self, client: str) -> ClientData:
        seen, wanted = self.seen[int(client)], self.wanted[int(client)]
        return ClientData(Tensors((seen, wanted)), Tensors((seen[:0], wanted[:0])), {})


@dataclass(frozen=True)
class Points(Task):
    points: int  # of each client

    def model(self) -> nn.Module:
        return nn.Linear(4, 2)

    def population(self, data: Any, seed: int) -> Population:
        return People(self.points)

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        logits = model(batch[0])
        return Outputs(logits, logits)

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(outputs.logits, batch[1])

    def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
        return {"n": 0.0}
