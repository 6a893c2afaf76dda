"""The task: of which of two kinds is a pebble, from where it lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.core.task import EVERYONE, ClientData, Outputs, Population, Task, Tensors
from fedreel.models.backbone import BackboneConfig
from pebbles.backbone import DenseConfig


class Beach(Population):
    """Three owners, whose pebbles lie around different places."""

    clients = ("east", "north", "west")

    def __init__(self, seed: int) -> None:
        self._pebbles = {}
        for place, name in enumerate(self.clients):
            x = torch.randn(16, 2, generator=torch.Generator().manual_seed(10 * seed + place)) + 0.3 * place
            self._pebbles[name] = (x, (x[:, 0] * x[:, 1] > 0).long())

    def data(self, client: str) -> ClientData:
        names = self.clients if client == EVERYONE else (client,)
        train, test = (
            Tensors.join([Tensors(tuple(t[part] for t in self._pebbles[name])) for name in names])
            for part in (slice(12), slice(12, None))
        )
        return ClientData(train, test)


class Net(nn.Module):
    def __init__(self, backbone: BackboneConfig) -> None:
        super().__init__()
        self.backbone = backbone.network(None)
        self.head = nn.Linear(self.backbone.out_channels, 2)


@dataclass(frozen=True)
class Counting(Task):
    """Pebbles of two kinds."""

    backbone: BackboneConfig = field(default_factory=DenseConfig)

    def __post_init__(self) -> None:
        self.backbone.check_takes("points")

    def model(self) -> nn.Module:
        return Net(self.backbone)

    def population(self, data: Any, seed: int) -> Population:
        return Beach(seed)

    def forward(self, model: Any, batch: tuple[Tensor, ...]) -> Outputs:
        features = model.backbone(batch[0])
        return Outputs(features, model.head(features))

    def loss(self, outputs: Outputs, batch: tuple[Tensor, ...]) -> Tensor:
        return F.cross_entropy(outputs.logits, batch[1])

    def evaluate(self, model: nn.Module, examples: Any, batch_size: int) -> dict[str, float]:
        right = n = 0.0
        for batch in examples.batches(batch_size):
            right += float((self.forward(model, batch).logits.argmax(1) == batch[1]).sum())
            n += len(batch[1])
        return {"top1": right / n, "n": n} if n else {"n": 0.0}

    def which(self, model: nn.Module, rows: list[list[float]]) -> list[int]:
        """The kind of each pebble."""
        with torch.inference_mode():
            return self.forward(model, (torch.tensor(rows),)).logits.argmax(1).tolist()
