"""A training step as a CUDA graph: recorded once, replayed for every batch of the same form."""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedreel.core.task import Batch
from fedreel.core.terms import OfJob

WORTH = 6  # further batches of one form from which recording pays: it costs about as much as two steps in Python
MOST = 32  # recordings kept
_log = logging.getLogger(__name__)

Step = Callable[[Batch], Tensor]
Form = tuple[tuple[torch.Size, torch.dtype], ...]


class Graph:
    """What was recorded. CUDA forbids to destroy it while anything is being recorded, which then breaks: whatever is
    thrown away meanwhile, by whoever does it, is held until no recording is under way."""

    recording = False  # whether one is under way
    unwanted: ClassVar[list[torch.cuda.CUDAGraph]] = []

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph

    def replay(self) -> None:
        self._graph.replay()

    def __del__(self) -> None:
        if self.recording:
            self.unwanted.append(self._graph)


@dataclass(frozen=True)
class Recording:
    """A graph with the places of its inputs and of its result, and the step it was made of: that keeps alive what the
    graph reads and writes."""

    graph: Graph
    inputs: tuple[Tensor, ...]
    result: Tensor
    step: Step

    def replay(self, batch: Batch) -> Tensor:
        for mine, given in zip(self.inputs, batch):
            mine.copy_(given)
        self.graph.replay()
        return self.result


class Recorder:
    """Records graphs, all in the same memory and on one stream (the allocator keeps memory apart by stream), so the
    result of a replay is gone with the next one. Recordings of steps that are the same for all clients and rounds are
    kept; of others the latest only. What methods add to a step (`core.terms`) is the same for all jobs in that its
    tensors are brought to where the first job had them. After a failure it records no more."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._latest: Graph | None = None  # keeps the memory until the next graph has it
        self._works, self._begun = True, False
        self.kept: dict[tuple, Recording] = {}
        self.seen: Counter[tuple] = Counter()
        self._added: dict[tuple, OfJob[Any]] = {}

    def lasting(self, added: Any, place: int) -> Any:
        """What stands for a term or an adjustment in every job: an object that is the same whenever the step is. A
        plain function stands for itself."""
        if not isinstance(added, OfJob):
            return added
        key = (place, added.key)
        if key not in self._added:
            self._added[key] = added.held()
        self._added[key].take(added)
        return self._added[key]

    def record(self, step: Step, batch: Batch) -> Recording | None:
        """The recording of `step(batch)`; None, and a line in the log, if that cannot be."""
        if not self._works:
            return None
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self._stream = self._stream or torch.cuda.Stream()
        if not self._begun:
            gc.collect()  # recordings of a run that has ended, with their memory
            self._begun = True
        graph, inputs = torch.cuda.CUDAGraph(), tuple(t.clone() for t in batch)
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with _under_way(), torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = step(inputs)
                finally:
                    graph.capture_end()
        except RuntimeError as error:  # a step that waits for the device, or no memory left
            reason = str(error).partition("\n")[0].partition(". ")[0]  # out of memory goes on with all processes there
            _log.warning("training goes on without CUDA graphs: this step cannot be recorded (%s)", reason)
            self._works = False
            self._give_up()
            return None
        torch.cuda.current_stream().wait_stream(self._stream)
        self._latest = Graph(graph)
        return Recording(self._latest, inputs, result, step)

    def _give_up(self) -> None:
        """After a recording that broke, PyTorch takes it that it still goes on: its memory is that of the recording,
        and its random numbers are refused to everybody, recordings made before among them. Another recording, which
        ends as it should, leaves random numbers as they were."""
        with suppress(RuntimeError):  # the recording may have broken after that
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
        nothing, graph = torch.zeros((), device="cuda"), torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with _under_way(), torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            nothing.zero_()
            graph.capture_end()


class Replayed:
    """Makes the first steps in Python, then replays a recording for batches of the same form. Small networks are bound
    by Python and kernel launches, of which a replay has none. The recording reads and writes the very tensors that the
    step does (weights, momenta, running statistics), so the two may alternate.

    `of` names the objects that the step works on, if it is the same whenever these are: it is recorded for good."""

    def __init__(
        self, step: Step, batches: int, recorder: Recorder, of: tuple[object, ...] | None = None, often: int = WORTH
    ) -> None:
        """`batches` is how many are expected; a form that has come so `often` is common."""
        self.step, self.left, self.recorder, self._often = step, batches, recorder, often
        self._lasting = None if of is None else tuple(map(id, of))
        self._own: dict[tuple, Recording] = {}
        self._tried = False

    def __call__(self, batch: Batch) -> Tensor:
        self.left -= 1
        if not isinstance(batch, tuple) or not all(isinstance(t, Tensor) for t in batch):
            return self.step(batch)
        key = (self._lasting, _form(batch))
        known = self._own if self._lasting is None else self.recorder.kept
        if key in known:
            return known[key].replay(batch)
        result = self.step(batch)  # sets up whatever is made on first use
        if self._worth(key):
            recording = self.recorder.record(self.step, batch)
            if recording is not None:
                known[key] = recording
        return result

    def _worth(self, key: tuple) -> bool:
        """Whether to record now: once a job, or for good where this form is common."""
        if self._lasting is None:
            due, self._tried = self.left >= WORTH and not self._tried, True
            return due
        self.recorder.seen[key] += 1
        common = self.left >= WORTH or self.recorder.seen[key] >= self._often
        return common and len(self.recorder.kept) < MOST


def _form(batch: tuple[Tensor, ...]) -> Form:
    return tuple((t.shape, t.dtype) for t in batch)


_one_at_a_time = threading.Lock()


@contextmanager
def _under_way() -> Iterator[None]:
    """Within this, a recording is under way: no other is destroyed, and nobody looks for garbage."""
    with _one_at_a_time:
        collecting = gc.isenabled()
        gc.disable()
        Graph.recording = True
        try:
            yield
        finally:
            Graph.recording = False
            Graph.unwanted.clear()
            if collecting:
                gc.enable()
