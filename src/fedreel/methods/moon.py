"""MOON (Li et al. 2021): FedAvg with a contrast between the received model and the client's own previous one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.core.method import Method
from fedreel.core.task import Task
from fedreel.core.terms import Step, term
from fedreel.errors import RecipeError
from fedreel.methods.fedavg import FedAvg


@dataclass(frozen=True)
class MOON(FedAvg):
    """Local objective: loss + mu * -log( e^{cos(z,z_glob)/t} / (e^{cos(z,z_glob)/t} + e^{cos(z,z_prev)/t}) ).
    z are the task's features: give the task a projection (256 in the paper) to contrast there. A client's first round
    has no previous model and no contrast."""

    mu: float = 1.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        check_ranges(self, "method", mu=(0, math.inf), temperature=(1e-6, math.inf))

    def comes_to(self) -> Method:
        return self if self.mu else FedAvg(self.weight_by)

    def check(self, task: Task) -> None:
        if task.tune == "head" and not getattr(task, "projection", 0):
            raise RecipeError(
                "MOON contrasts features, and those of a frozen backbone never change",
                where="[task.backbone] tune",
                expected="all, norm or lora, or a projection in the head (task.projection = 256)",
                found="head",
            )

    def local_training(self, client: Client) -> None:
        previous = client.state.group("previous")
        terms = []
        if previous:
            received, before = client.frozen(client.received), client.frozen(previous)
            terms = [model_contrastive(client.task, received, before, self.mu, self.temperature)]
        client.fit(terms)
        client.state.keep("previous", client.weights())


@term
def model_contrastive(
    step: Step, task: Task, received: nn.Module, previous: nn.Module, mu: float, temperature: float
) -> Tensor:
    """Pull the features towards the received model's, push them from the client's previous model's."""
    z = step.outputs.features
    with torch.no_grad():
        others = [task.forward(model, step.batch).features.to(z.dtype) for model in (received, previous)]
    sims = torch.stack([F.cosine_similarity(z, other) for other in others], dim=1)
    return mu * F.cross_entropy(sims / temperature, torch.zeros(len(z), dtype=torch.long, device=z.device))
