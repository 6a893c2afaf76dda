"""Many clients at once, their parameters stacked: for small models, where a client's step is mostly overhead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from fedreel.core.client import Client, Worker
from fedreel.core.discretion import Discretion
from fedreel.core.method import Method
from fedreel.core.task import Task, Tensors
from fedreel.core.training import learning_rate
from fedreel.core.update import TRAIN, Order, Reply, Result, Update
from fedreel.core.weights import Weights
from fedreel.engines.local import LocalEngine, attempt
from fedreel.engines.stacking import Rows, StackedTraining

MOST_CLIENTS = 64
MOST_BYTES = 512 * 2**20  # of the stacked models; gradients and momentum take as much again each


@dataclass(frozen=True)
class _Job:
    order: Order
    client: Client
    examples: Tensors

    @cached_property
    def shapes(self) -> tuple[object, ...]:
        """Equal for clients whose batches can lie in one tensor."""
        return tuple((t.shape[1:], t.dtype) for t in self.examples.tensors)


class VectorEngine(LocalEngine):
    """Trains the waiting clients together where that gives what the local engine gives, up to rounding: the method's
    clients do no more than train, by SGD, on tensors, a model that draws no random numbers and changes no buffers.
    Every other order is carried out as the local engine does it."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._training = StackedTraining(worker.model, worker.task, worker.weights.layout.moving, worker.config)
        self._may = _plain(worker)
        self._verdicts: dict[object, bool] = {}
        self._trained: deque[tuple[Order, Callable[[Order], Reply]]] = deque()  # and what is left to do
        size = sum(n * dtype.itemsize for dtype, n in worker.weights.layout.moving.sizes.items())
        self.slots = max(1, min(MOST_CLIENTS, MOST_BYTES // max(size, 1))) if self._may else 1

    def next(self) -> Result | None:
        if not self._trained:
            jobs = self._waiting()
            if len(jobs) < 2:
                return super().next()
            for _ in jobs:
                self._queue.popleft()
            self._trained.extend(self._train(jobs))
        return attempt(*self._trained.popleft())

    def _waiting(self) -> list[_Job]:
        """The orders at the head of the queue that may be stacked; of a client's several only the first, because the
        others start from what that one leaves."""
        jobs: dict[str, _Job] = {}
        for order in self._queue:
            job = self._job(order) if len(jobs) < self.slots and order.client not in jobs else None
            if job is None:
                break
            jobs[order.client] = job
        return list(jobs.values())

    def _job(self, order: Order) -> _Job | None:
        if not self._may or order.kind != TRAIN or order.limit is not None or not order.models:
            return None
        try:
            client = self.worker.open(order)
            examples = client.data.train
            if (
                client.received.layout != self.worker.travelling
                or not isinstance(examples, Tensors)
                or not len(examples)
            ):
                return None
            job = _Job(order, client, examples)
            return job if self._agrees(job) else None
        except Exception:  # carried out alone, this order will say what is wrong with it
            return None

    def _agrees(self, job: _Job) -> bool:
        """Whether batches like this client's can be stacked; tried out on the first that has them."""
        if job.shapes not in self._verdicts:
            self.worker.enter(job.client, self.worker.weights)
            batch = next(job.examples.batches(self.worker.config.batch_size))
            self._verdicts[job.shapes] = self._training.agrees(self.worker.weights, batch)
        return self._verdicts[job.shapes]

    def _train(self, jobs: list[_Job]) -> list[tuple[Order, Callable[[Order], Reply]]]:
        """Orders, as they came, with what is left to do of each: to keep and to let out, when its result is asked for,
        or all of it where stacking came to nothing."""
        groups: dict[object, list[_Job]] = {}
        for job in jobs:
            groups.setdefault((job.order.round, job.shapes), []).append(job)
        rest: dict[str, Callable[[Order], Reply]] = {}
        for group in groups.values():
            if len(group) > 1:
                rest |= self._train_group(sorted(group, key=lambda job: -len(job.examples)))
        return [(job.order, rest.get(job.order.client, self.worker.execute)) for job in jobs]

    def _train_group(self, jobs: list[_Job]) -> dict[str, Callable[[Order], Reply]]:
        """By client, what is left to do; nothing if training failed: each is then carried out anew and alone, so that
        the failure is its client's and nobody else's."""
        worker = self.worker
        try:
            worker.check_training()
            rows = Rows(worker.weights.layout.moving, len(jobs), worker.device)
            for i, job in enumerate(jobs):
                worker.enter(job.client, rows[i])
            losses = self._training.fit(
                rows,
                [job.examples for job in jobs],
                learning_rate(worker.config, jobs[0].order.round, worker.rounds),
                [self._generator(job.order) for job in jobs],
            )
        except Exception:
            return {}
        return {job.order.client: partial(self._finish, job.client, rows[i], losses[i]) for i, job in enumerate(jobs)}

    def _finish(self, client: Client, row: Weights, loss: float, order: Order) -> Update:
        client.trained(loss)
        whole = row.layout is self.worker.travelling
        return self.worker.leave(client, order, row, row if whole else row.take(self.worker.travelling))

    def _generator(self, order: Order) -> torch.Generator | None:
        return torch.Generator().manual_seed(self.worker.seed_of(order)) if self.worker.config.shuffle else None


def _plain(worker: Worker) -> bool:
    """Whether recipe, method and task leave the training loop as `core.training.fit` has it."""
    config = worker.config
    return (
        type(worker.method).local_training is Method.local_training
        and type(worker.discretion).fit is Discretion.fit
        and type(worker.task).augment is Task.augment
        and config.optimizer == "sgd"
        and not config.keep_optimizer
        and (config.precision == "fp32" or worker.device.type == "cpu")
        and any(p.requires_grad for p in worker.model.parameters())
    )
