"""The model as task and method make it: its tensors, which of them travel, and what everybody starts from."""

from __future__ import annotations

import torch
from torch import nn

from .method import Method
from .task import Task
from .weights import Layout, Weights, bind


class Blueprint:
    """Server and clients build it from the same recipe and seed, each for itself: no initial model has to travel."""

    def __init__(self, task: Task, method: Method, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = task.model().to(device)
        self.weights = bind(self.model)
        whole = self.weights.layout
        self.travelling: Layout = whole.only(method.travels)
        self.private: Layout = Layout(t for t in whole.tensors if t.name not in self.travelling.place)
        self.start: Weights = self.weights.take(self.travelling)  # what a server starts from
        self.initial: Weights = self.weights.take(self.private)  # a client's private tensors before its first order

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.model.parameters())
