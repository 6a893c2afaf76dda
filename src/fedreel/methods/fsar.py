"""FSAR (Guo et al. 2023): topologies of which a part stays home, and multi-grain distillation from the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.config import check_ranges
from fedreel.core.abilities import Blocks, able
from fedreel.core.batchnorm import by_batch
from fedreel.core.client import Client
from fedreel.core.method import Method
from fedreel.core.task import Task
from fedreel.core.terms import Step, Term, term
from fedreel.core.weights import TensorInfo
from fedreel.methods.fedagm import FedAGM
from fedreel.methods.fedprox import proximal

STAYS = ("unique topology", "coefficients")  # parts of the model that stay with their client


@dataclass(frozen=True)
class FSAR(FedAGM):
    """FedAGM's rounds (W^ = W + lambda m; clients train from W^; m <- lambda m + tau d; W <- W + m), in which
    - the unique topology U and the coefficients stay with their client,
    - the local objective is CE(z) + sum_m [CE(t_m) + kd KL(t_m || z)] + mu/2 ||W - W^||^2, where t_m goes through the
      first m of the received model's frozen blocks and then through the client's own. The authors' code has, instead
      of the sum, half of its mean (grains = "mean").
    blocks = 0 is without distillation; with lambda = 0, tau = 1 and mu = 0 too it is FedAvg."""

    needs = (Blocks,)
    tunes = ("all",)  # topologies are trained, and a teacher's blocks against the client's own

    mu: float = 0.1
    blocks: int = 2  # the streams' m = 1 .. blocks
    kd: float = 1.0
    grains: Literal["sum", "mean"] = "sum"
    detach_teacher: bool = True  # the authors' code lets the divergence move the streams too
    teacher_topology: Literal["server", "client"] = "server"  # without U and coefficients, as in the paper, or with the
    # client's own, which the blocks after it are used to

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, "method", blocks=(0, 3), kd=(0, float("inf")))

    def comes_to(self) -> Method:
        """Without distillation nobody asks how it is done. Whether anything stays home, the topology says."""
        return self if self.blocks else FSAR(self.weight_by, self.lambda_, self.tau, self.mu, blocks=0)

    def check(self, task: Task) -> None:
        if self.blocks:
            able(task, Blocks).check_blocks()

    def travels(self, tensor: TensorInfo) -> bool:
        return tensor.part not in STAYS

    def terms(self, client: Client) -> Sequence[Term]:
        terms: list[Term] = []
        if self.blocks:
            own = _without_unique(client) if self.teacher_topology == "server" else {}
            server = by_batch(client.frozen({**client.received, **own}))
            share = 1.0 if self.grains == "sum" else 0.5 / self.blocks
            terms.append(multi_grain(client.task, server, self.blocks, self.kd, share, self.detach_teacher))
        if self.mu:
            terms.append(proximal(client.received, self.mu))
        return terms


def _without_unique(client: Client) -> dict[str, Tensor]:
    """The server's topology: A and I with coefficients 1, and no U."""
    unique, coefficients = (client.weights(lambda t, part=part: t.part == part) for part in STAYS)  # type: ignore[misc]
    zeros = {name: torch.zeros_like(tensor) for name, tensor in unique.items()}
    return zeros | {name: torch.ones_like(tensor) for name, tensor in coefficients.items()}


@term
def multi_grain(
    step: Step, task: Task, teacher: nn.Module, blocks: int, kd: float, share: float, detach: bool
) -> Tensor:
    """Streams m = 1 .. blocks go through the teacher's first m blocks and the rest of the client's
    model, to logits t_m: share * sum_m [CE(t_m, y) + kd KL(softmax(t_m) || softmax(z))]."""
    z = F.log_softmax(step.outputs.logits, dim=1)
    total = torch.zeros((), device=z.device)
    for mixed in able(task, Blocks).streams(teacher, step.model, step.batch, blocks):
        t = F.log_softmax(mixed.logits.detach() if detach else mixed.logits, dim=1)
        total = total + task.loss(mixed, step.batch)
        total = total + kd * F.kl_div(z, t, reduction="batchmean", log_target=True)
    return share * total
