"""How much work a client's training step is: whether a GPU is kept busy by one."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedreel.core.client import Worker
from fedreel.engines.stacked.alone import step_alone
from fedreel.engines.stacked.draws import generator_of

SMALL = 20e9  # operations of a step, below which it takes a GPU less time than Python takes to hand it out


def measured_step(worker: Worker) -> tuple[float, int]:
    """Operations of a training step of the first client that has data, and the bytes it takes on a GPU; zeros if that
    cannot be found out. Everything is left as it was."""
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
        with FlopCounterMode(display=False) as counter:
            step_alone(worker.model, worker.task, params, worker.config, batch)
        memory = torch.cuda.max_memory_allocated(worker.device) - held if gpu else 0
        return float(counter.get_total_flops()), memory
    except Exception:  # an order will say what is wrong
        return 0.0, 0
    finally:
        worker.weights.put(before)
        generator.set_state(random)
