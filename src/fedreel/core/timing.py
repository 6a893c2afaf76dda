"""How long clients train, and how much of that they wait for their data."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fedreel.core.task import Batch, Examples

LONGEST = 1e9  # seconds that anybody is believed to have trained
UNREAD = 64  # marks on a GPU's work that are kept before the first of them are read


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a training, and how many of them it waited: for its data to be read, decoded and brought to the
    device. Data that lie in memory are there when they are wanted."""

    training: float = 0.0
    waiting: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.waiting <= self.training < math.inf:
            raise ValueError(f"no times: {self.training} s, {self.waiting} s of them waiting")

    def __add__(self, other: Times) -> Times:
        return Times(self.training + other.training, self.waiting + other.waiting)

    def __truediv__(self, clients: int) -> Times:
        """What each of several clients has of it that were trained together."""
        return Times(self.training / clients, self.waiting / clients)

    def after(self, loading: float) -> Times:
        """These, where the data had to be loaded before that."""
        return self + Times(loading, loading)

    def row(self) -> list[float]:
        return [self.training, self.waiting]

    @staticmethod
    def of_row(row: Any) -> Times | None:
        """From what came over a line, if anything did; raises if that is no times."""
        if row is None:
            return None
        training, waiting = map(float, row)
        if training > LONGEST:
            raise ValueError(f"{training:g} s of training")
        return Times(training, waiting)


class Stopwatch:
    """Runs from when it is made, for one training. On a GPU, which is given work ahead, only that waiting counts for
    which the GPU itself had nothing to do."""

    def __init__(self, device: torch.device) -> None:
        self._began = self._rested = time.perf_counter()
        self._waited = 0.0
        self._idle = _Idle(device) if device.type == "cuda" else None

    def batches(self, examples: Examples, size: int, generator: torch.Generator | None) -> Iterator[Batch]:
        """The batches of an epoch."""
        return self.counted(examples.batches(size, generator), resident(examples))

    def counted(self, batches: Iterator[Batch], resident: bool) -> Iterator[Batch]:
        """The same batches; the time that each is waited for is counted, unless they are cut from memory."""
        return batches if resident else self._counted(batches)

    def outside(self, work: Callable[[], None]) -> None:
        """Do something that is no part of the training."""
        self.rest()
        work()
        self.go_on()

    def rest(self) -> None:
        self._rested = time.perf_counter()

    def go_on(self) -> None:
        self._began += time.perf_counter() - self._rested

    def stop(self) -> Times:
        """When the device has done all of it."""
        if self._idle is not None:
            self._waited += self._idle.seconds(all=True)
        training = time.perf_counter() - self._began
        return Times(training, min(self._waited, training))

    def _counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        end = object()
        while True:
            began = time.perf_counter()
            if self._idle is not None:
                self._idle.begin()
            batch = next(batches, end)
            if self._idle is not None:
                self._idle.end()
                self._waited += self._idle.seconds()
            else:
                self._waited += time.perf_counter() - began
            if batch is end:
                return
            yield batch


class _Idle:
    """How long the current stream of a GPU has nothing to do between two moments, by marks in the stream: the first is
    reached when all that was given before is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def begin(self) -> None:
        span = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        span[0].record(torch.cuda.current_stream(self._device))
        self._spans.append(span)

    def end(self) -> None:
        self._spans[-1][1].record(torch.cuda.current_stream(self._device))

    def seconds(self, all: bool = False) -> float:
        """Of spans that were not told before: of all, or of the oldest ones where there are many."""
        total = 0.0
        while self._spans and (all or len(self._spans) > UNREAD):
            first, last = self._spans[0]
            if all:
                last.synchronize()
            elif not last.query():
                break
            total += first.elapsed_time(last) / 1000
            self._spans.popleft()
        return total


def resident(examples: Examples) -> bool:
    """Whether batches are cut from memory. Examples say so themselves; else they may be read as they are wanted."""
    return bool(getattr(examples, "resident", False))
