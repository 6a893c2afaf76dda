"""How to work for the clients of a round on one GPU, by how much of it one client's step keeps busy."""

from __future__ import annotations

from typing import Any, cast

import torch

from fedreel.core.client import Worker
from fedreel.engines.local import LocalEngine
from fedreel.engines.stacked.ask import Ask, CannotStack
from fedreel.engines.stacked.draws import generator_of
from fedreel.engines.stacked.training import StackedTraining
from fedreel.engines.step_size import measured_step
from fedreel.engines.streams import StreamsEngine
from fedreel.engines.vector import VectorEngine

AT_ONCE = 4  # clients side by side, or nearly so many
SHARE = 0.5  # of the GPU's free memory that they may take


def choose(worker: Worker, cohort: int) -> LocalEngine:
    """`vector` for small steps that can be stacked, `streams` for others if several fit, `local` where clients come one
    at a time."""
    size = measured_step(worker)
    side_by_side = lanes(cohort, int(SHARE * _free_memory(worker.device) // max(size.memory, 1)))
    engine, name = LocalEngine(worker), "local"
    if size.small and cohort > 1 and (size.brief or _stacks(worker)):
        engine, name = VectorEngine(worker), "vector"
        engine.why = f"{size}: clients are stacked (engine vector)"
    elif size.operations and side_by_side > 1:
        engine, name = StreamsEngine(worker, side_by_side), "streams"
        engine.why = f"{size}: {side_by_side} clients are trained side by side (engine streams)"
    engine.chosen = name
    return engine


def lanes(cohort: int, most: int) -> int:
    """How many clients are trained side by side, `most` or fewer, so that the last ones are about as many as those
    before them: of five clients four at once and one alone would take longer than five at once."""
    turns = max(1, round(cohort / AT_ONCE), -(-cohort // max(1, most)))
    return -(-cohort // turns)


def _stacks(worker: Worker) -> bool:
    """Whether a plain step of the first client that has data gives the same stacked: attention does not, since PyTorch
    cannot differentiate its fused kernels for several clients at once. What a method adds to a step is looked at when
    it asks for it."""
    train = next(data for c in worker.population.clients if len(data := worker.data_of(c).train))
    optimizer, state = worker.optimizers.of(None), generator_of(worker.device).get_state()
    start = worker.weights.take(worker.weights.layout.moving)
    nobody = cast(Any, None)  # the step is nobody's: it begins with the worker's model
    ask = Ask(nobody, train, optimizer, (), None, 1, worker.config.lr, start, {}, {}, None, state)
    try:
        StackedTraining(worker, None, worker.device.type != "cuda").check(ask)
    except CannotStack:
        return False
    return True


def _free_memory(device: torch.device) -> float:
    return float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else float(2**60)
