"""FedVSSL (Rehman et al. 2022): backbones travel, pretext heads stay; averages by size and by loss are mixed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedreel.config import check_ranges
from fedreel.core.aggregate import Mean
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.weights import TensorInfo, Weights


@dataclass(frozen=True)
class FedVSSL(Method):
    """With D_avg the mean client change weighted by samples, and D_loss that weighted by exp(-loss):
    D = alpha D_loss + (1 - alpha) D_avg;  w~ = w + server_lr D;  w <- mean of w~ and the last beta global models.
    The paper prints a minus before D, which would lead away from the clients. The model before the first round is no
    global model yet, so the first round is not averaged; from then on beta = 1 is the same as half the server_lr."""

    alpha: float = 0.9
    beta: int = 0
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check_ranges(self, "method", alpha=(0, 1), beta=(0, math.inf), server_lr=(0, math.inf))

    def travels(self, tensor: TensorInfo) -> bool:
        return tensor.part == "backbone"

    def run(self, fed: Federation) -> None:
        past: list[Weights] = fed.memory.setdefault("past", [])
        for _ in fed.rounds():
            by_samples, by_loss = fed.averages(fed.sample(), fed.weights, by=("samples", "loss"))
            mixed = _mean((by_samples.weights, 1 - self.alpha), (by_loss.weights, self.alpha))
            moved = fed.weights.toward(mixed, self.server_lr).with_state_of(mixed)
            fed.weights = _mean((moved, 1.0), *((w, 1.0) for w in past))
            past[:] = [fed.weights, *past][: self.beta]


def _mean(*weighted: tuple[Weights, float]) -> Weights:
    if len(weighted) == 1:
        return weighted[0][0]
    mean = Mean()
    for weights, weight in weighted:
        mean.add(weights, weight)
    return mean.value
