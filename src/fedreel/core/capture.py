"""A training step as a CUDA graph: recorded once, replayed for every batch of the same form."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .task import Batch

WORTH = 6  # further batches of one form from which recording pays: it costs about as much as two steps in Python
_log = logging.getLogger(__name__)

Step = Callable[[Batch], Tensor]


class Recorder:
    """Records graphs, one after the other, in the same memory: each makes the one before it useless. The allocator
    keeps memory apart by stream, so all are recorded on one stream too. After a failure it records no more."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._latest: torch.cuda.CUDAGraph | None = None  # keeps the memory until the next graph has it
        self._works = True

    def record(self, step: Step, inputs: Batch) -> tuple[torch.cuda.CUDAGraph, Tensor] | None:
        """The graph of `step(inputs)` and the place of its result; None, and a line in the log, if that cannot be."""
        if not self._works:
            return None
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self._stream = self._stream or torch.cuda.Stream()
        graph, random = torch.cuda.CUDAGraph(), torch.cuda.default_generators[torch.cuda.current_device()]
        before = random.clone_state()
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = step(inputs)
                finally:
                    graph.capture_end()
        except RuntimeError as error:  # a step that waits for the device, or no memory left
            _log.warning("training goes on without CUDA graphs: this step cannot be recorded (%s)", error)
            self._works = False
            random.graphsafe_set_state(before)  # else it would still count as being recorded
            return None
        torch.cuda.current_stream().wait_stream(self._stream)
        self._latest = graph
        return graph, result


class Replayed:
    """Makes the first step in Python, then replays a recording of it for batches of the same form. Small networks are
    bound by Python and kernel launches, of which a replay has none. The recording reads and writes the very tensors
    that the step does (weights, momenta, running statistics), so the two may alternate."""

    def __init__(self, step: Step, batches: int, recorder: Recorder) -> None:
        """`batches` is how many are expected."""
        self.step, self.left, self.recorder = step, batches, recorder
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._result = torch.zeros(())
        self._warm = False

    def __call__(self, batch: Batch) -> Tensor:
        self.left -= 1
        if self._graph is not None and _form(batch) == _form(self._inputs):
            for mine, given in zip(self._inputs, batch):
                mine.copy_(given)
            self._graph.replay()
            return self._result
        result = self.step(batch)
        if self._graph is None and self.left >= WORTH and not self._warm:
            self._warm = True  # the step just made has set up whatever is made on first use; try once
            self._record(batch)
        return result

    def _record(self, batch: Batch) -> None:
        if not isinstance(batch, tuple) or not all(isinstance(t, Tensor) for t in batch):
            return
        inputs = tuple(t.clone() for t in batch)
        found = self.recorder.record(self.step, inputs)
        if found is not None:
            (self._graph, self._result), self._inputs = found, inputs


def _form(batch: Batch) -> list[torch.Size]:
    return [t.shape for t in batch]
