"""Ditto (Li et al. 2021): beside the global model each client has its own, held near the global one."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.core.method import Numbers
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedprox import proximal


@dataclass(frozen=True)
class Ditto(FedAvg):
    """The global model w is FedAvg's. Client k also minimises L_k(v) + lambda/2 ||v - w||^2, from where its v_k was, w
    being the model that it received; v_k never leaves, and is what the client is tested with."""

    lambda_: float = 0.1

    def __post_init__(self) -> None:
        check_ranges(self, "method", lambda_=(0, float("inf")))

    def local_training(self, client: Client) -> None:
        before = client.weights()
        client.fit()
        shared, numbers = client.weights(), dict(client.numbers)
        client.load(client.state.group("personal") or before)
        client.fit([proximal(client.received, self.lambda_)])
        client.state.keep("personal", client.weights())
        client.load(shared)
        client.numbers = numbers

    def local_test(self, client: Client) -> Numbers:
        client.load(client.state.group("personal"))
        return client.test()
