"""FedSimCLR: SimCLR at every client, encoders and projectors averaged; no labels."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.federation import Federation
from fedreel.core.task import studied
from fedreel.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedSimCLR(FedAvg):
    """FedAvg of models that learn to tell views of their client's samples apart: task.objective must be views."""

    def run(self, fed: Federation) -> None:
        studied(fed.task).check_views()
        super().run(fed)
