"""FedAsync (Xie et al. 2019): every update moves the global model as it comes, the less the older it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.terms import Term
from fedreel.methods.fedprox import proximal


@dataclass(frozen=True)
class FedAsync(Method):
    """w <- (1 - a_t) w + a_t w_i with a_t = alpha s(tau), for an update of a model that is tau steps old. s is
    `constant`: 1; `polynomial`: (1 + tau)^-power; `hinge`: 1 up to `patience` steps, then 1 / (slope (tau - patience)
    + 1). Clients hold near what they received by mu/2 ||w - w_received||^2. A round is one update."""

    sees: ClassVar = "each"
    waits: ClassVar = False

    alpha: float = 0.6
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    power: float = 0.5
    slope: float = 10.0
    patience: int = 4
    in_flight: int = 10
    mu: float = 0.005

    def __post_init__(self) -> None:
        check_ranges(self, "method", alpha=(0, 1), power=(0, math.inf), slope=(0, math.inf), patience=(0, math.inf))
        check_ranges(self, "method", in_flight=(1, math.inf), mu=(0, math.inf))

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            for arrival in fed.arrivals(1, self.in_flight):
                a, mean = self.alpha * self.discount(arrival.behind), fed.mean(told=False)
                mean.add(fed.weights, 1 - a)
                mean.add(arrival.update.weights, a)
                fed.weights = mean.value

    def discount(self, tau: int) -> float:
        """s(tau): how much an update of this age counts."""
        if self.staleness == "polynomial":
            return (1 + tau) ** -self.power
        late = tau - self.patience
        return 1 / (self.slope * late + 1) if self.staleness == "hinge" and late > 0 else 1.0

    def terms(self, client: Client) -> Sequence[Term]:
        return [proximal(client.received, self.mu)] if self.mu else []
