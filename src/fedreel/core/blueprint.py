"""The model as task and method make it: its tensors, which of them travel, and what everybody starts from."""

from __future__ import annotations

import warnings
from functools import cached_property

import torch
from torch import Tensor, nn

from fedreel.core.abilities import Contrastable, able
from fedreel.core.frozen import digest
from fedreel.core.method import Method
from fedreel.core.task import Examples, Task
from fedreel.core.weights import Layout, Weights, bind


class Blueprint:
    """Server and clients build it from the same recipe and seed, each for itself: no initial model has to travel."""

    def __init__(self, task: Task, method: Method, seed: int, device: torch.device) -> None:
        self._make = lambda: task.model().to(device)
        self.task = task
        torch.manual_seed(seed)
        self.model: nn.Module = self._make()
        self.weights = bind(self.model)
        whole = self.weights.layout
        self.frozen: Layout = whole.frozen  # of no further concern: it is here, and nobody changes it
        self.travelling: Layout = whole.moving.only(lambda t: method.travels(t) and not task.own(t))
        self.private: Layout = Layout(t for t in whole.moving.tensors if t.name not in self.travelling.place)
        self.start: Weights = self.weights.take(self.travelling)  # what a server starts from
        self.initial: Weights = self.weights.take(self.private)  # a client's private tensors before its first order

    @cached_property
    def digest(self) -> str:
        """Of the frozen tensors: every place must have built the same. Empty if nothing is frozen."""
        return digest({name: self.weights[name] for name in self.frozen.place})

    @staticmethod
    def measure(task: Task) -> int:
        """Bytes of the whole model that a task makes, told without the memory for it."""
        with torch.device("meta"), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # weights from files are of no use there
            return sum(t.numel() * t.element_size() for t in task.model().state_dict().values())

    def fresh(self, seed: int) -> Weights:
        """The travelling tensors of another model of the same kind, initialised under another seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return bind(self._make()).take(self.travelling)

    def test(self, weights: Weights, examples: Examples, batch_size: int = 128) -> dict[str, float]:
        """The task's metrics of a model (private tensors as initialised) on examples that lie here."""
        model = self._with(weights)
        with torch.no_grad():
            return self.task.evaluate(model, examples.to(next(model.parameters()).device), batch_size)

    def vectors(self, weights: Weights, samples: Tensor, batch_size: int = 128) -> Tensor:
        """What the model's backbone makes of samples, (N, D), on the samples' device."""
        model, task = self._with(weights), able(self.task, Contrastable)
        device = next(model.parameters()).device
        with torch.no_grad():
            found = [task.vectors(model, some.to(device)) for some in samples.split(batch_size)]
        return torch.cat(found).float().to(samples.device)

    def _with(self, weights: Weights) -> nn.Module:
        for part in (self.initial, weights):
            self._tested[1].put(part)
        return self._tested[0].eval()

    @cached_property
    def _tested(self) -> tuple[nn.Module, Weights]:
        """A model of the server's own: the other may be at work for clients."""
        with torch.random.fork_rng(devices=[]):
            model = self._make()
        weights = bind(model)
        weights.put(self.weights.take(self.frozen))
        return model, weights

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)
