"""Recordings without a GPU: what is replayed is made again, on the memory that was recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from fedreel.core.capture import Recorder, Recording


class FakeGraph:
    """A recording that makes the step again, on the inputs that were recorded."""

    def __init__(self, step: Any, inputs: Any) -> None:
        self.step, self.inputs, self.result, self.replays = step, inputs, torch.zeros(()), 0

    def replay(self) -> None:
        self.replays += 1
        found = self.step(self.inputs)
        self.result.resize_(found.shape).copy_(found)


class FakeRecorder(Recorder):
    def __init__(self, works: bool = True) -> None:
        super().__init__()
        self.works = works
        self.made: list[FakeGraph] = []

    def record(self, step: Any, batch: Any) -> Recording | None:
        if not self.works:
            return None
        graph = FakeGraph(step, tuple(t.clone() for t in batch))
        self.made.append(graph)
        return Recording(graph, graph.inputs, graph.result, step)  # type: ignore[arg-type]


class FakeCUDA:
    """What `Recorder.record` asks of torch.cuda, as a list of what happened, in order. A graph that is destroyed while
    another is being recorded breaks that recording, as CUDA has it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self._broken = False
        stands_in: dict[str, Callable[..., Any]] = {
            "CUDAGraph": self._graph,
            "graph_pool_handle": lambda: (0, 1),
            "Stream": self._stream,
            "current_stream": self._stream,
            "stream": lambda _: nullcontext(),
            "current_device": lambda: 0,
        }
        for name, fake in stands_in.items():
            patch.setattr(torch.cuda, name, fake)
        patch.setattr(torch, "zeros", lambda *_, **__: torch.ones(()))
        patch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *_: self.events.append("memory given back"))

    def _graph(self) -> Any:
        cuda = self

        class Graph:
            def capture_begin(self, **_: Any) -> None:
                cuda.events.append("begin")
                cuda._broken = False

            def capture_end(self) -> None:
                cuda.events.append("broken" if cuda._broken else "end")
                if cuda._broken:
                    raise RuntimeError("operation failed due to a previous error during capture")

            def __del__(self) -> None:
                cuda.events.append("destroyed")
                cuda._broken = True

        return Graph()

    def _stream(self, *_: Any) -> Any:
        class Stream:
            def wait_stream(self, other: Any) -> None: ...

        return Stream()
