"""How much work a client's training step is: whether a GPU is kept busy by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fedreel.core.client import Worker
from fedreel.engines.stacked.alone import step_alone
from fedreel.engines.stacked.draws import generator_of

SMALL = 20e9  # operations: a step of fewer leaves most of a GPU idle
BRIEF = 100  # kernels: a small step of fewer takes a GPU less time than Python takes to let clients have their turns


@dataclass(frozen=True)
class StepSize:
    """Multiplications and additions, kernels, and bytes on a GPU; zeros if that cannot be found out."""

    operations: float = 0.0
    kernels: int = 0
    memory: int = 0

    @property
    def small(self) -> bool:
        return 0 < self.operations < SMALL

    @property
    def brief(self) -> bool:
        return self.small and self.kernels < BRIEF

    def __str__(self) -> str:
        return f"a step is {self.operations / 1e9:.2g} billion operations in {self.kernels} kernels"


def measured_step(worker: Worker) -> StepSize:
    """Of the first client that has data. It is counted, not timed, so that the same job is always carried out in the
    same way. Everything is left as it was."""
    generator = generator_of(worker.device)
    random, before = generator.get_state(), worker.weights.clone()
    gpu = worker.device.type == "cuda"
    try:
        train = next(data for c in worker.population.clients if len(data := worker.data_of(c).train))
        batch = next(iter(train.batches(worker.config.batch_size)))
        if gpu:
            torch.cuda.reset_peak_memory_stats(worker.device)
        held = torch.cuda.memory_allocated(worker.device) if gpu else 0
        params = [p for p in worker.model.parameters() if p.requires_grad]
        with FlopCounterMode(display=False) as counter, Kernels() as kernels:
            step_alone(worker.model, worker.task, params, worker.config, batch)
        memory = torch.cuda.max_memory_allocated(worker.device) - held if gpu else 0
        return StepSize(float(counter.get_total_flops()), kernels.count, memory)
    except Exception:  # an order will say what is wrong
        return StepSize()
    finally:
        worker.weights.put(before)
        generator.set_state(random)


class Kernels(TorchDispatchMode):
    """Counts operations on tensors; those that only look at memory in another way are none."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        self.count += not views
        return func(*args, **(kwargs or {}))
