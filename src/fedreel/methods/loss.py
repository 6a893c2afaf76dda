"""Loss-weighted FedAvg: clients that fit their data better weigh more (the "Loss" baseline of FedVSSL)."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.method import Method
from fedreel.methods.fedavg import FedAvg, WeightBy


@dataclass(frozen=True)
class LossWeighted(FedAvg):
    """p_k = exp(-L_k) / sum exp(-L), with L_k the client's mean training loss of the round."""

    weight_by: WeightBy = "loss"

    def comes_to(self) -> Method:
        return self if self.weight_by == "loss" else FedAvg(self.weight_by)
