"""FedOpt (Reddi et al. 2021): the mean client change is a gradient for an adaptive optimizer at the server."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedreel.config import check_ranges
from fedreel.core.federation import Federation
from fedreel.core.weights import Weights
from fedreel.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAdam (Reddi et al. 2021): the mean client change is a gradient for Adam at the server.

    With d this change: m <- beta1 m + (1 - beta1) d, v <- beta2 v + (1 - beta2) d^2,
    w <- w + server_lr m / (sqrt(v) + tau); v^0 = tau^2."""

    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 0.001

    def __post_init__(self) -> None:
        check_ranges(self, "method", server_lr=(0, float("inf")), beta1=(0, 1), beta2=(0, 1), tau=(1e-12, float("inf")))

    def step(self, fed: Federation, average: Weights) -> Weights:
        d = average - fed.weights
        m = self.beta1 * fed.memory.get("m", 0.0 * d) + (1 - self.beta1) * d
        v = fed.memory.get("v", d.map(lambda d: 0 * d + self.tau**2)).map(self.second, d)
        fed.memory.update(m=m, v=v)
        move = m.map(lambda m, v: m / (v.sqrt() + self.tau), v)
        return (fed.weights + self.server_lr * move).with_state_of(average)

    def second(self, v: Tensor, d: Tensor) -> Tensor:
        """The running square of the change."""
        return self.beta2 * v + (1 - self.beta2) * d.square()


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedYogi (Reddi et al. 2021): Yogi at the server, which forgets large changes more slowly than Adam.

    As FedAdam, with v <- v - (1 - beta2) d^2 sign(v - d^2)."""

    def second(self, v: Tensor, d: Tensor) -> Tensor:
        return v - (1 - self.beta2) * d.square() * (v - d.square()).sign()


@dataclass(frozen=True)
class FedAdagrad(FedAdam):
    """FedAdagrad (Reddi et al. 2021): Adagrad at the server, which slows down where the model has changed much.

    As FedAdam, with v <- v + d^2 and no momentum."""

    beta1: float = 0.0

    def second(self, v: Tensor, d: Tensor) -> Tensor:
        return v + d.square()
