"""FedSimCLR: SimCLR at every client, encoders and projectors averaged; no labels."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.abilities import Contrastable, able
from fedreel.core.task import Task
from fedreel.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedSimCLR(FedAvg):
    """FedAvg of models that learn to tell views of their client's samples apart: task.objective must be views."""

    needs = (Contrastable,)

    def check(self, task: Task) -> None:
        able(task, Contrastable).check_views()
