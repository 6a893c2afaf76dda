"""The client side of a simulation: a Ray actor carries orders out itself, on the machine's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedreel.config import Recipe
from fedreel.core.client import Worker
from fedreel.core.exchange import Ledger, Policy
from fedreel.core.job import Job, make_method, make_task, make_worker
from fedreel.core.state import PrivateStore
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.workplace import Workplace
from fedreel.machine.device import pick_device

_workplaces: dict[tuple[Any, ...], Workplace] = {}  # this process's, kept warm between messages


def answer(frame: Frame) -> Frame:
    """Carry a frame out in this process. `out` and `threads` come from the machine's own engine."""
    out, threads = Path(frame.head["out"]), int(frame.head["threads"])
    if (out, threads) not in _workplaces:
        torch.set_num_threads(threads)
        _workplaces.clear()
        _workplaces[out, threads] = Workplace(lambda recipe, run: _make(recipe, out, run), "simulation", None, None)
    return _workplaces[out, threads].answer(frame)


def _make(recipe: Recipe, out: Path, run: str) -> Worker:
    job = Job(recipe, make_task(recipe), make_method(recipe), pick_device(recipe.device), out, run)
    policy = Policy.read(Path(recipe.policy)) if recipe.policy else Policy()
    store, ledger = PrivateStore(out / "clients", shared=True), Ledger(out / "ledger.jsonl")
    return make_worker(job, job.population(), store, ledger, policy)
