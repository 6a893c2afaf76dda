"""Which of several ways to the same result a GPU is fastest with: measured, since it follows no rule that holds."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

Way = Callable[[], Tensor]
TIMES = 3  # that each way is taken to measure it
AHEAD = 2_000_000  # cycles that the GPU is kept busy, so that all it is to be timed with lies ready


class Fastest:
    """Remembers what it has measured. Where nothing can be measured, which is so on a CPU and while a step is recorded,
    an unknown key takes its first way."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def __call__(self, key: Hashable, device: torch.device, *ways: Way) -> Tensor:
        """What the fastest of these ways makes; `key` is equal where the same one is the fastest."""
        if len(ways) == 1:
            return ways[0]()
        known = (key, device)
        if known not in self._known and _measurable(device):
            taken = [milliseconds(way) for way in ways]
            self._known[known] = taken.index(min(taken))
        return ways[self._known.get(known, 0)]()


def _measurable(device: torch.device) -> bool:
    return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()


def milliseconds(way: Way) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    way()  # sets up whatever is made on first use
    torch.cuda._sleep(AHEAD)
    begin.record()
    for _ in range(TIMES):
        way()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
