"""How to work for the clients of a round on one GPU, by how much of it one client's step keeps busy."""

from __future__ import annotations

import torch

from fedreel.core.client import Worker
from fedreel.engines.local import LocalEngine
from fedreel.engines.step_size import measured_step
from fedreel.engines.streams import StreamsEngine
from fedreel.engines.vector import VectorEngine

AT_ONCE = 4  # clients side by side
SHARE = 0.5  # of the GPU's free memory that they may take


def choose(worker: Worker, cohort: int) -> LocalEngine:
    """`vector` for small steps, `streams` for others if several fit, `local` where clients come one at a time."""
    size = measured_step(worker)
    side_by_side = min(AT_ONCE, cohort, int(SHARE * _free_memory(worker.device) // max(size.memory, 1)))
    engine, name = LocalEngine(worker), "local"
    if size.small and cohort > 1:
        engine, name = VectorEngine(worker), "vector"
        engine.why = f"{size}: clients are stacked (engine vector)"
    elif size.operations and side_by_side > 1:
        engine, name = StreamsEngine(worker, side_by_side), "streams"
        engine.why = f"{size}: {side_by_side} clients are trained side by side (engine streams)"
    engine.chosen = name
    return engine


def _free_memory(device: torch.device) -> float:
    return float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else float(2**60)
