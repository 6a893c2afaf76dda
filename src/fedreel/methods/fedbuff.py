"""FedBuff (Nguyen et al. 2022): the server steps whenever a buffer of updates is full, and waits for nobody."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedreel.config import check_ranges
from fedreel.core.federation import Federation
from fedreel.core.method import Method


@dataclass(frozen=True)
class FedBuff(Method):
    """Algorithm 1: w <- w + server_lr / K sum_i s(tau_i) (w_i - w_sent,i), over the K updates of a buffer, with
    s(tau) = (1 + tau)^-power for updates of models that are tau steps old. A round is one step of the server."""

    sees: ClassVar = "each"
    waits: ClassVar = False

    buffer: int = 10  # K
    in_flight: int = 100  # clients at work at once
    server_lr: float = 1.0
    power: float = 0.5

    def __post_init__(self) -> None:
        check_ranges(self, "method", buffer=(1, math.inf), in_flight=(1, math.inf))
        check_ranges(self, "method", server_lr=(0, math.inf), power=(0, math.inf))

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            moved, mean = 0.0 * fed.weights, fed.mean(told=False)
            for arrival in fed.arrivals(self.buffer, self.in_flight):
                stale = (1 + arrival.behind) ** -self.power
                moved = moved + stale * (arrival.update.weights - arrival.sent)
                mean.add(arrival.update.weights)
            fed.weights = (fed.weights + (self.server_lr / self.buffer) * moved).with_state_of(mean.value)
