"""Several clients at once on one GPU, a model and a stream each: one client's small batches leave it partly idle."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import nullcontext

import torch
from torch import Tensor

from fedreel.core.client import Worker
from fedreel.core.job import Job
from fedreel.core.update import Failure, Order, Result, buffers
from fedreel.engines.local import LocalEngine, attempt
from fedreel.engines.own_random import OwnRandom
from fedreel.engines.step_size import measured_step
from fedreel.errors import RecipeError

MOST = 64
_NAP = 2e-5  # seconds between looks at a GPU that every client waits for


class StreamsEngine(LocalEngine):
    """Carries out `at_once` orders side by side on one GPU. Clients take turns with Python, one training step each, and
    the GPU works on the steps of all. Each draws its own random numbers, so batches and views are those of the local
    engine. On a CPU it gives the same weights, no sooner. Where a step is too small for that to pay, `begin` gives
    the local engine."""

    def __init__(self, worker: Worker, at_once: int = 4) -> None:
        super().__init__(worker)
        self.slots = at_once
        self._lanes = deque(_Lane(w) for w in (worker, *(worker.another() for _ in range(at_once - 1))))

    @classmethod
    def begin(cls, job: Job, keep_trained: bool = False, at_once: int = 4) -> LocalEngine:
        if not isinstance(at_once, int) or not 1 <= at_once <= MOST:
            raise RecipeError(
                "at_once says how many clients are worked for at once",
                where="[engine] streams",
                expected=f"1 to {MOST}",
                found=repr(at_once),
            )
        worker = job.worker(keep_trained)
        size = measured_step(worker) if worker.device.type == "cuda" else None
        if size is None or not size.brief:
            return cls(worker, at_once)
        engine = LocalEngine(worker)
        engine.chosen = "local"
        engine.why = f"{size}, too few to be made side by side (engine local)"
        return engine

    def next(self) -> Result | None:
        self._hand_out()
        while any(lane.order for lane in self._lanes):  # till one has a result
            ready = [lane for lane in self._lanes if lane.ready]
            for lane in ready:
                self._lanes.remove(lane)
                self._lanes.append(lane)  # its turn comes again after the others'
                result = lane.go_on()
                if result is not None:
                    return result
            if not ready:
                time.sleep(_NAP)
        return super().next()

    def close(self) -> None:
        for lane in self._lanes:
            lane.end()
        super().close()

    def _hand_out(self) -> None:
        """Waiting orders to lanes that have none. A client's next order begins when its last one has ended: it starts
        from what that one leaves. Those with a time limit are left to be carried out alone, as the local engine does
        it: only the main thread can be interrupted where a client hangs."""
        for lane in self._lanes:
            busy = {other.order.client for other in self._lanes if other.order}
            free = (i for i, order in enumerate(self._queue) if order.limit is None and order.client not in busy)
            place = next(free, None)
            if lane.order is None and place is not None:
                lane.begin(self._queue[place])
                del self._queue[place]


class _Ended(BaseException):
    """The engine is closed: the order under way is given up."""


class _Lane:
    """A worker in a thread of its own, which runs only while `go_on` waits for it: until it pauses, or has a result."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.order: Order | None = None
        self._random = OwnRandom(worker.device)
        gpu = worker.device.type == "cuda"
        self._stream = torch.cuda.Stream(worker.device) if gpu else None
        self._until: torch.cuda.Event | None = None
        self._result: Result | BaseException | None = None
        self._ended = False
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, daemon=True)

    @property
    def ready(self) -> bool:
        """Whether it has something to do that need not wait for the device."""
        return self.order is not None and (self._until is None or self._until.query())

    def begin(self, order: Order) -> None:
        self.order, self.worker.pause = order, self._pause
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.worker.device))  # what made the order's weights
        if not self._thread.is_alive():
            self._thread.start()

    def go_on(self) -> Result | None:
        """The order's result, or None if it pauses."""
        self._until = None
        with self._random:
            self._turn.release()
            self._back.acquire()
        result, self._result = self._result, None
        if result is None:
            return None
        self.order = self.worker.pause = None
        if isinstance(result, BaseException):
            raise result
        if self._stream is not None and not isinstance(result, Failure):
            here = torch.cuda.current_stream(self.worker.device)
            for tensor in filter(_on_gpu, buffers(result)):
                tensor.record_stream(here)  # else this lane might write there while it is still being read
        return result

    def end(self) -> None:
        self._ended = True
        if self._thread.is_alive():
            self._turn.release()
            self._thread.join(timeout=10)

    # in the thread

    def _work(self) -> None:
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            try:
                while True:
                    self._wait()
                    assert self.order is not None
                    result = attempt(self.order, self.worker.execute)
                    self._pause(until_done=True)
                    self._result = result
                    self._back.release()
            except _Ended:
                pass
            except BaseException as error:
                self._result = error
                self._back.release()

    def _pause(self, until_done: bool = False) -> None:
        """Let others have their turn; with `until_done` until the device has done what it was given here."""
        if until_done and self._stream is not None:
            self._until = self._stream.record_event()
        self._back.release()
        self._wait()

    def _wait(self) -> None:
        self._turn.acquire()
        if self._ended:
            raise _Ended


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda
