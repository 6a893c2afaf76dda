"""FedProx (Li et al. 2020): FedAvg with a proximal term that holds clients near the model they received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.core.method import Method
from fedreel.core.terms import Gradients, Step, Term, term
from fedreel.core.weights import Weights
from fedreel.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Local objective: loss + mu/2 ||w - w_received||^2."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        check_ranges(self, "method", mu=(0, float("inf")))

    def comes_to(self) -> Method:
        return self if self.mu else FedAvg(self.weight_by)

    def terms(self, client: Client) -> Sequence[Term]:
        return [proximal(client.received, self.mu)]


@term
def proximal(step: Step, received: Weights, mu: float) -> Tensor:
    """mu/2 ||w - w_received||^2 over the parameters that travel."""
    held = _held(step, received)
    now = torch.cat([p.flatten() for p in held.values()])  # one vector: a few kernels instead of hundreds
    moved = now - torch.cat([received[n].flatten() for n in held])
    return 0.5 * mu * moved.dot(moved)


@proximal.gradient
def pull(step: Step, received: Weights, mu: float) -> Gradients:
    """mu (w - w_received)."""
    held = _held(step, received)
    moved = torch._foreach_sub([p.detach() for p in held.values()], [received[n] for n in held])
    return dict(zip(held, torch._foreach_mul(moved, mu)))


def _held(step: Step, received: Weights) -> dict[str, Tensor]:
    return {n: p for n, p in step.model.named_parameters() if n in received and p.requires_grad}
