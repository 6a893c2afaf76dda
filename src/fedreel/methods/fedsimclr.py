"""FedSimCLR: SimCLR at every client, encoders and projectors averaged; no labels."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.client import Client
from ..core.task import studied
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedSimCLR(FedAvg):
    """FedAvg of models that learn to tell views of their client's samples apart: task.objective must be views."""

    def local_training(self, client: Client) -> None:
        studied(client.task).check_views()
        super().local_training(client)
