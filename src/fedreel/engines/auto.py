"""The default engine: worker processes where several cores have clients to work for, else this process."""

from __future__ import annotations

import multiprocessing

import torch

from fedreel.core.job import Job
from fedreel.engines.local import LocalEngine
from fedreel.engines.processes.crew import ForkedCrew, can_fork
from fedreel.engines.processes.engine import ProcessesEngine, check_workers
from fedreel.machine.processes import cores, is_interactive

ALONE = 0.5  # seconds of clients' work that this process does before it starts workers: short runs never do


class AutoEngine(LocalEngine):
    """Chooses `processes` if half of the cores or more would have a client of a round each, and `local` otherwise: a
    few clients are better served by all cores in turn. On a GPU it goes by the size of a step, see `on_gpu`."""

    @classmethod
    def begin(cls, job: Job, keep_trained: bool = False, workers: int = 0) -> LocalEngine:
        check_workers(workers)
        worker, available = job.worker(keep_trained), _cores()
        cohort = _cohort(job, len(worker.population.clients))
        if job.device.type == "cuda":
            from fedreel.engines.on_gpu import choose  # with all of torch.func, which takes a second

            return choose(worker, cohort)
        at_once = min(workers or available, cohort)
        engine = LocalEngine(worker)
        pays = at_once >= 2 and (workers or 2 * at_once >= available) and not _is_one_of_many()
        if pays and is_interactive():
            engine.why = (
                "one client after another: workers are not forked from a notebook or a prompt (engine local); "
                f"the engine processes starts {at_once} fresh ones"
            )
        elif pays and can_fork(job.device):
            crew = ForkedCrew(worker, at_once)
            if torch.cuda.is_available() and not crew.able():
                crew.close()
            else:
                engine = ProcessesEngine(worker, crew, at_once, ALONE)
                engine.why = f"{at_once} clients at once on {available} cores, one thread each (engine processes)"
        engine.chosen = "processes" if isinstance(engine, ProcessesEngine) else "local"
        return engine


def _cores() -> int:
    """As many as PyTorch would take for one client: OMP_NUM_THREADS limits them, for instance."""
    return min(cores(), torch.get_num_threads())


def _cohort(job: Job, clients: int) -> int:
    """How many clients train in a round."""
    config = job.recipe.round
    return min(clients, config.clients or max(1, round(config.fraction * clients)))


def _is_one_of_many() -> bool:
    """Whether this is itself one of several processes that share the cores, as the cells of a table are."""
    return multiprocessing.parent_process() is not None
