"""FedAGM (Kim et al. 2022): clients start from the accelerated model and are held near it; momentum on the server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.terms import Term
from fedreel.methods.fedavg import WeightBy
from fedreel.methods.fedprox import FedProx, proximal


@dataclass(frozen=True)
class FedAGM(Method):
    """With m the momentum (m^0 = 0) and d the mean client change:
    W^ = W + lambda m;  clients train from W^;  d = sum p_k (W_k - W^);  m <- lambda m + tau d;  W <- W + m.
    lambda = 0, tau = 1, mu = 0 is FedAvg."""

    weight_by: WeightBy = "samples"
    lambda_: float = 0.8
    tau: float = 0.8
    mu: float = 0.001

    def __post_init__(self) -> None:
        check_ranges(self, "method", lambda_=(0, 1), tau=(0, math.inf), mu=(0, math.inf))

    def comes_to(self) -> Method:
        if (self.lambda_, self.tau) != (0, 1):
            return self
        return FedProx(self.weight_by, self.mu).comes_to()

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            m = fed.memory.get("momentum")
            ahead = fed.weights if m is None else (fed.weights + self.lambda_ * m).with_state_of(fed.weights)
            new = fed.average(fed.sample(), ahead, by=self.weight_by).weights
            d = new - ahead
            m = self.tau * d if m is None else self.lambda_ * m + self.tau * d
            fed.memory["momentum"] = m
            fed.weights = (fed.weights + m).with_state_of(new)

    def terms(self, client: Client) -> Sequence[Term]:
        return [proximal(client.received, self.mu)] if self.mu else []
