"""FedAvgM (Hsu et al. 2019): FedAvg with momentum at the server."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.config import check_ranges
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.weights import Weights
from fedreel.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """m <- beta m + d, w <- w + server_lr m, with d the mean client change."""

    server_lr: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_ranges(self, "method", server_lr=(0, float("inf")), beta=(0, 1))

    def comes_to(self) -> Method:
        return FedAvg(self.weight_by) if (self.server_lr, self.beta) == (1, 0) else self

    def step(self, fed: Federation, average: Weights) -> Weights:
        d = average - fed.weights
        fed.memory["m"] = m = self.beta * fed.memory["m"] + d if "m" in fed.memory else d
        return (fed.weights + self.server_lr * m).with_state_of(average)
