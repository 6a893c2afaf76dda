"""FSAR (Guo et al. 2023): topologies of which a part stays home, and multi-grain distillation from the server."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.core.training import multi_grain, proximal
from fedreel.core.weights import TensorInfo
from fedreel.methods.fedagm import FedAGM


@dataclass(frozen=True)
class FSAR(FedAGM):
    """FedAGM's rounds (W^ = W + lambda m; clients train from W^; m <- lambda m + tau d; W <- W + m), in which
    - the unique topology U and the coefficients stay with their client,
    - the local objective is CE(z) + sum_m [CE(t_m) + kd KL(t_m || z)] + mu/2 ||W - W^||^2, where t_m goes through the
      first m of the received model's frozen blocks and then through the client's own.
    blocks = 0 is without distillation; with lambda = 0, tau = 1 and mu = 0 too it is FedAvg."""

    mu: float = 0.1
    blocks: int = 2  # the streams' m = 1 .. blocks
    kd: float = 1.0
    detach_teacher: bool = True  # the authors' code lets the divergence move the streams too

    def __post_init__(self) -> None:
        check_ranges(self, "method", blocks=(0, 3), kd=(0, float("inf")), mu=(0, float("inf")))

    def travels(self, tensor: TensorInfo) -> bool:
        return not _stays(tensor.name)

    def local_training(self, client: Client) -> None:
        terms = []
        if self.blocks:
            server = client.teacher({**client.received, **_without_unique(client)})
            terms.append(multi_grain(client.task, server, self.blocks, self.kd, self.detach_teacher))
        if self.mu:
            terms.append(proximal(client.received, self.mu))
        client.fit(terms)


def _stays(name: str) -> bool:
    return name.endswith((".unique", ".coefficients"))


def _without_unique(client: Client) -> dict[str, Tensor]:
    """The server's topology: A and I with coefficients 1, and no U."""
    own = {name: tensor for name, tensor in client.model.state_dict().items() if _stays(name)}
    return {n: torch.zeros_like(t) if n.endswith(".unique") else torch.ones_like(t) for n, t in own.items()}
