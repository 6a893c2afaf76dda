"""What a server has and does itself: its models and memory, data of its own, and training on them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from fedreel.core.abilities import Supervision
from fedreel.core.blueprint import Blueprint
from fedreel.core.pool import Roll
from fedreel.core.server_training import Kept, ServerTraining
from fedreel.core.task import Examples, Task, Tensors
from fedreel.core.update import Failure, Reply
from fedreel.core.weights import Weights
from fedreel.errors import RunError

T = TypeVar("T")
GLOBAL = "global"
MakeTraining = Callable[[Supervision, float, Examples], ServerTraining]


@dataclass
class ServerState:
    """Everything of a federation that a checkpoint must hold."""

    round: int = 0
    models: dict[str, Weights] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=lambda: {"bytes_up": 0, "bytes_down": 0, "seconds": 0.0})
    refused: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    trained: Roll = field(default_factory=Roll)  # clients of whom an update has come


class Watcher:
    """Gets to know what happens; the run directory and the progress line are watchers. Does nothing itself."""

    def record(self, round: int, phase: str, values: Mapping[str, Any]) -> None: ...

    def work_begins(self, round: int, kind: str, clients: Sequence[str]) -> None:
        """These clients are about to be ordered to train, to answer a question or to test: `kind` says which."""

    def client_is(self, client: str, state: str) -> None:
        """One of them is `working`, `done` or `failed`."""

    def client_done(self, round: int, done: int, failed: int, total: int, loss: float, nbytes: int) -> None: ...

    def round_done(self, progress: ServerState, sync: Callable[[], None]) -> None:
        """A round has ended; `sync` makes durable what clients wrote and may be called from another thread."""


class Server:
    """The part of a federation that needs no client."""

    def __init__(
        self,
        blueprint: Blueprint,
        progress: ServerState,
        seed: int,
        watchers: Sequence[Watcher] = (),
        public: Callable[[], Examples | None] = lambda: None,
        training: MakeTraining | None = None,
    ) -> None:
        self.progress, self.seed = progress, seed
        self._blueprint, self._watchers, self._public, self._make_training = blueprint, watchers, public, training
        self._told = [w for w in watchers if type(w).client_is is not Watcher.client_is]  # who wants to know of clients
        self._trainings: dict[tuple[Supervision, float], ServerTraining] = {}

    @property
    def task(self) -> Task:
        return self._blueprint.task

    @property
    def round(self) -> int:
        return self.progress.round

    @property
    def weights(self) -> Weights:
        """The global model (its travelling part)."""
        return self.progress.models[GLOBAL]

    @weights.setter
    def weights(self, new: Weights) -> None:
        self.progress.models[GLOBAL] = new

    @property
    def models(self) -> dict[str, Weights]:
        """All global models by name, for methods that keep several."""
        return self.progress.models

    @property
    def memory(self) -> dict[str, Any]:
        """What the server remembers between rounds beside its models: numbers, text, lists, weights. Checkpointed."""
        return self.progress.memory

    def once(self, name: str, make: Callable[[], T]) -> T:
        """The result of `make`, computed once in a run and remembered over a resume (clusters, groups, a roster)."""
        if name not in self.memory:
            self.memory[name] = make()
        return self.memory[name]

    def fresh(self, number: int) -> Weights:
        """A newly initialised model, another for every number: for methods that keep several."""
        return self._blueprint.fresh(self.seed + 7919 * number)

    @cached_property
    def public(self) -> Examples:
        """The server's own data, which nobody has to protect."""
        found = self._public()
        if found is None:
            raise RunError("this method needs public data at the server, and the task has none", hint="see data.public")
        return found

    def train_server(self, weights: Weights, what: Supervision, share: float = 1.0, keep_head: bool = True) -> Weights:
        """These weights with a backbone that the server has trained further on its own data: to tell views of them
        apart, or to learn the labels of a share of them. The head of that training stays here, from round to round if
        `keep_head`, and so does the optimizer's state if the recipe keeps it; all other tensors are as they were."""
        began = time.monotonic()
        if self._make_training is None:
            raise RunError("there is no server here that could train")
        if (what, share) not in self._trainings:
            made = self._trainings[what, share] = self._make_training(what, share, self.public)
            made.weights.put(self._blueprint.weights.take(self._blueprint.frozen))
        training, head, optimizer = self._trainings[what, share], f"server-head/{what}", f"server-optimizer/{what}"
        before = Kept(self.memory[head], self.memory.get(optimizer, {})) if head in self.memory else None
        trained, kept, loss = training.train(weights, before, self.round, keep_head)
        self.memory[head] = kept.head
        if kept.optimizer:
            self.memory[optimizer] = kept.optimizer
        seconds = time.monotonic() - began
        self.record("server", what=what, loss=loss, samples=len(training.examples), seconds=seconds)
        return trained

    def samples(self, count: int) -> Tensor:
        """So many of the server's own samples, evenly spread over them."""
        examples = self.public
        if not isinstance(examples, Tensors):
            raise RunError("the server's own data are no rows of one tensor", found=type(examples).__name__)
        rows = examples.tensors[0]
        return rows[:: max(1, len(rows) // count)][:count].clone()

    def vectors(self, weights: Weights, samples: Tensor) -> Tensor:
        """What the backbone of a model makes of samples that lie here."""
        return self._blueprint.vectors(weights, samples)

    def test(self, weights: Weights, examples: Examples) -> dict[str, float]:
        """The task's metrics of a model on examples that the server holds itself."""
        return self._blueprint.test(weights, examples)

    def record(self, phase: str, **values: Any) -> None:
        """Write a line to the run's metrics."""
        for watcher in self._watchers:
            watcher.record(self.round, phase, values)

    def refuse(self, failure: Failure) -> None:
        """Count an answer that is of no use, and note whose it is and why."""
        refused = self.progress.refused
        refused[failure.reason] = refused.get(failure.reason, 0) + 1
        self.record(
            "refused", client=failure.client, reason=failure.reason, detail=failure.detail, answered_round=failure.round
        )

    def tell_begin(self, kind: str, clients: Sequence[str]) -> None:
        for watcher in self._watchers:
            watcher.work_begins(self.round, kind, clients)

    def tell_answer(self, done: int, failed: int, total: int, update: Reply) -> None:
        loss, nbytes = update.numbers.get("loss", math.nan), update.nbytes
        for watcher in self._watchers:
            watcher.client_done(self.round, done, failed, total, loss, nbytes)

    def tell_state(self, client: str, state: str) -> None:
        for watcher in self._told:
            watcher.client_is(client, state)
