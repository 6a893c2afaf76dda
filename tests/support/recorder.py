"""Recordings without a GPU: what is replayed is made again, on the memory that was recorded."""

from __future__ import annotations

from typing import Any

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
