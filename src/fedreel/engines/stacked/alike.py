"""When clients of different runs may be trained together: their steps are the same but for what is each client's."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fedreel.config import TrainConfig
from fedreel.core.client import Worker
from fedreel.core.frozen import digest
from fedreel.core.task import Task
from fedreel.core.terms import value_key
from fedreel.core.weights import Layout
from fedreel.engines.stacked.added import Added
from fedreel.engines.stacked.agreement import trained_names
from fedreel.engines.stacked.ask import Ask


@dataclass(frozen=True)
class Ground:
    """What the steps of all clients of a run depend on; equal for runs whose clients may be trained together."""

    task: Task
    config: TrainConfig  # but for the rate, which each client has for itself
    device: torch.device
    layout: Layout
    travelling: Layout
    fixed: str  # a digest of the model's tensors that no client has for itself, such as those of a frozen backbone


def ground_of(worker: Worker) -> Ground:
    layout = worker.weights.layout
    named = chain(worker.model.named_parameters(), worker.model.named_buffers())
    fixed = {name: tensor.detach() for name, tensor in named if name not in layout.moving.place}
    config = replace(worker.config, lr=1.0)
    return Ground(worker.task, config, worker.device, layout, worker.travelling, digest(fixed))


def step_of(ask: Ask) -> Hashable:
    """Equal for asks, of runs on equal ground, whose steps are the same but for their tensors. It is `ask.kind` for
    several runs: model, task and optimizer are known by what they are to their run, not as objects."""
    worker = ask.client._worker
    terms, adjust = (_form(term, worker) for term in ask.terms), ask.adjust and _form(ask.adjust, worker)
    return tuple(trained_names(worker, ask)), tuple(terms), adjust


def _form(added: Added, worker: Worker) -> Hashable:
    return added.function, *(_role(value, worker) for value in added.given)


def _role(value: Any, worker: Worker) -> Hashable:
    if value is worker.task:
        return "the task"
    if value is worker.model:
        return "the model"
    if isinstance(value, nn.Module):
        place = next((i for i, other in enumerate(worker._spares) if other is value), None)
        return id(value) if place is None else ("a model beside it", place)
    return value_key(value) if isinstance(value, Tensor) else (type(value).__name__, value_key(value))
