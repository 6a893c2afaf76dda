"""A task that is all weights and no work: what is left to measure is transport."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedreel.core.task import ClientData, Outputs, Population, Task, Tensors


class Net(nn.Module):
    """`size` numbers that are trained, of which a step touches all."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.backbone = nn.Linear(1, size, bias=False)
        self.head = nn.Linear(1, 1)


class Few(Population):
    """Clients with two samples each, no two clients the same: what is equal would travel once. A folder with
    `clients.txt` holds only those."""

    def __init__(self, clients: tuple[str, ...]) -> None:
        self.clients = clients

    def data(self, client: str) -> ClientData:
        own = torch.full((2, 1), 1.0 + int(client.removeprefix("client")) / 7)
        return ClientData(Tensors((own,)), Tensors((own[:1],)), {})


@dataclass(frozen=True)
class Bulk(Task):
    size: int = 131072
    clients: int = 10

    def model(self) -> nn.Module:
        return Net(self.size)

    def population(self, data: Any, seed: int) -> Population:
        file = Path(data.source) / "clients.txt"
        everyone = tuple(f"client{i:02d}" for i in range(self.clients))
        return Few(tuple(file.read_text().split()) if file.exists() else everyone)

    def forward(self, model: nn.Module, batch: tuple[Tensor]) -> Outputs:
        features = model.backbone(batch[0])
        return Outputs(features, model.head(batch[0]))

    def loss(self, outputs: Outputs, batch: tuple[Tensor]) -> Tensor:
        return outputs.features.square().sum() + outputs.logits.square().mean()  # moves every weight

    def evaluate(self, model: nn.Module, examples: Tensors, batch_size: int) -> dict[str, float]:
        return {"n": float(len(examples))}
