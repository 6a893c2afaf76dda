"""The client side of a simulation: a Ray actor carries the orders of a message out by an engine of its machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from fedreel.config import Recipe
from fedreel.core.client import Worker
from fedreel.core.exchange import Ledger, Policy
from fedreel.core.job import Job, make_method, make_task, make_worker
from fedreel.core.state import PrivateStore
from fedreel.core.transfer.together import Together
from fedreel.core.update import Order, Result
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.workplace import Workplace
from fedreel.engines.local import LocalEngine
from fedreel.engines.processes.crew import ForkedCrew, can_fork
from fedreel.engines.processes.engine import ProcessesEngine
from fedreel.machine.device import pick_device

_actors: dict[tuple[Any, ...], Actor] = {}  # this process's one, kept warm between messages


def answer(frame: Frame) -> Frame:
    """Carry a frame out in this process. `out` and what an actor has of its machine come from the run's own engine."""
    head = frame.head
    out, threads, workers, share = Path(head["out"]), *(int(head[name]) for name in ("threads", "workers", "share"))
    key = (out, threads, workers, share)
    if key not in _actors:
        for actor in _actors.values():
            actor.close()
        _actors.clear()
        torch.set_num_threads(threads)
        _actors[key] = Actor(out, workers, share)
    return _actors[key].answer(frame)


class Actor(Workplace):
    """Works for as many clients at once as it has `workers`. Updates that are to leave together are added up part by
    part, as the message is divided: the sums do not depend on which parts come to the same actor."""

    def __init__(self, out: Path, workers: int, share: int) -> None:
        """Each of its workers may have one part in `share` of its machine's memory for clients' data."""
        super().__init__(lambda recipe, run: _make(recipe, out, run), "simulation", None, None)
        self.workers, self.share = workers, share
        self._engine: LocalEngine | None = None

    def carry_out(
        self, worker: Worker, head: Mapping[str, Any], orders: Sequence[Order]
    ) -> tuple[list[Result], dict[str, Any]]:
        """The results, and how many seconds each took."""
        seconds: list[float] = []
        results: list[Result] = []
        coming = self._worked(worker, orders, seconds)
        try:
            for size in head["parts"]:
                together = Together(worker)
                done = [together.take(order, result) for order, result in islice(coming, size)]
                results += together.finish(done, str)
        except BaseException:  # of the engine itself, which may have orders left
            self.close()
            raise
        return results, {"seconds": seconds}

    def close(self) -> None:
        """End the engine and forget its worker; another message makes others."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._warm = None

    def _worked(self, worker: Worker, orders: Sequence[Order], seconds: list[float]) -> Iterator[tuple[Order, Result]]:
        """Orders with their results as they come, which is in their sequence: none of a message's waits for another."""
        engine, ahead = self._engine_of(worker), iter(orders)
        for order in islice(ahead, engine.slots):
            engine.submit(order)
        for order in orders:
            began = time.monotonic()
            result = engine.next()
            assert result is not None
            assert (result.round, result.step) == order.key
            seconds.append(engine.took(order) if isinstance(engine, _Crew) else time.monotonic() - began)
            for later in islice(ahead, 1):
                engine.submit(later)
            yield order, result

    def _engine_of(self, worker: Worker) -> LocalEngine:
        """Processes where the actor has several cores; they are forked before anything here has trained."""
        if self._engine is None or self._engine.worker is not worker:
            if self._engine is not None:
                self._engine.close()
            if self.workers > 1 and can_fork(worker.device):
                worker.gathers = True  # theirs: they hand over single updates that leave in a mean
                self._engine = _Crew(worker, ForkedCrew(worker, self.share), self.workers)
            else:
                worker.residence.budget //= self.share
                self._engine = LocalEngine(worker)
        return self._engine


class _Crew(ProcessesEngine):
    def took(self, order: Order) -> float:
        """Seconds that the order took, or would have if its process had not died over it."""
        return self._forecast.seconds(order)


def _make(recipe: Recipe, out: Path, run: str) -> Worker:
    job = Job(recipe, make_task(recipe), make_method(recipe), pick_device(recipe.device), out, run)
    policy = Policy.read(Path(recipe.policy)) if recipe.policy else Policy()
    store, ledger = PrivateStore(out / "clients", shared=True), Ledger(out / "ledger.jsonl")
    return make_worker(job, job.population(), store, ledger, policy)
