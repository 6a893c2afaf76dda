"""FedProx (Li et al. 2020): FedAvg with a proximal term that holds clients near the model they received."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.client import Client
from fedreel.core.training import proximal
from fedreel.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Local objective: loss + mu/2 ||w - w_received||^2."""

    mu: float = 0.01

    def local_training(self, client: Client) -> None:
        client.fit(terms=[proximal(client.received, self.mu)])
