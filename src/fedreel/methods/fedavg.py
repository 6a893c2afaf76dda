"""FedAvg (McMahan et al. 2017): clients train from the global model, the server averages what they made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.weights import Weights

WeightBy = Literal["samples", "frames", "loss", "equal"]


@dataclass(frozen=True)
class FedAvg(Method):
    """w <- sum_k p_k w_k, with p_k = n_k / n."""

    weight_by: WeightBy = "samples"

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            average = fed.average(fed.sample(), fed.weights, by=self.weight_by)
            fed.weights = self.step(fed, average.weights)

    def step(self, fed: Federation, average: Weights) -> Weights:
        """The server's move from the current model, given the average: to the average."""
        return average
