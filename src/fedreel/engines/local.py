"""This process: one client after another. One model, reused for all; weights loaded in place; no serialisation."""

from __future__ import annotations

import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedreel.core.client import Worker
from fedreel.core.job import Job
from fedreel.core.update import Failure, Order, Reply, Result
from fedreel.core.work import OutOfTime
from fedreel.errors import Diverged, PolicyError


class LocalEngine:
    """Carries out one order at a time, when its result is asked for."""

    slots = 1
    in_process = True  # attacks can be simulated: no client is elsewhere
    chosen = why = ""  # which engine this is and why, if the recipe leaves that to fedreel

    def __init__(self, worker: Worker) -> None:
        self.notices: list[str] = []  # what was done in another way than this engine's own
        self.worker = worker
        self.clients = worker.population.clients
        self.blueprint = worker.blueprint
        self._queue: deque[Order] = deque()

    @classmethod
    def begin(cls, job: Job, keep_trained: bool = False) -> LocalEngine:
        return cls(job.worker(keep_trained))

    @property
    def ran(self) -> str:
        """The engine whose way of working was followed in the end, if that is not the recipe's."""
        return self.chosen

    def describe(self) -> dict[str, Any]:
        return self.worker.population.describe()

    def submit(self, order: Order) -> None:
        self._queue.append(order)

    def next(self) -> Result | None:
        if not self._queue:
            return None
        return attempt(self._queue.popleft(), self.worker.execute)

    def sync(self) -> None:
        self.worker.store.sync()
        self.worker.door.ledger.sync()

    def close(self) -> None:
        self.worker.door.ledger.close()


def attempt(order: Order, work: Callable[[Order], Reply], explain: Callable[[Exception], str] | None = None) -> Result:
    """The reply that `work` makes of the order, or why there is none, in the words of `explain`."""
    explain = explain or _in_full
    try:
        if order.limit is None:
            return work(order)
        with _alarm(order.limit):
            return work(order)
    except OutOfTime:
        return _failure(order, "timeout", f"no answer within {order.limit:g} s")
    except PolicyError as error:
        return _failure(order, "policy", explain(error))
    except Diverged as error:
        return _failure(order, "diverged", explain(error))
    except (torch.OutOfMemoryError, MemoryError) as error:
        return _failure(order, "memory", explain(error))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        return _failure(order, "error", f"{explain(error)} ({where})")


def _in_full(error: Exception) -> str:
    return str(error) if isinstance(error, PolicyError) else f"{type(error).__name__}: {error}"


def _failure(order: Order, reason: str, detail: str) -> Failure:
    return Failure(order.round, order.step, order.client, reason, detail)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Interrupts a client that hangs outside the training loop (in its data, say). The loop itself checks its deadline;
    the signal reaches only the main thread, so elsewhere that check alone must do."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
