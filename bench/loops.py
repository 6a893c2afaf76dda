"""Rounds of fedreel, its whole product path (run directory, ledger, admission, checkpoints), and of a plain PyTorch
loop of the same steps; timed. For the benchmarks on GPUs."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from fedreel.config import DataConfig, Recipe, RoundConfig, TrainConfig
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.task import Task
from fedreel.runs.run import run

WARM_UP = 1  # rounds that are not timed


def now(device: str) -> float:
    """The time, when all that the device has been given is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def federated(
    task: Task,
    method: Method,
    config: TrainConfig,
    rounds: int,
    device: str,
    watch: Callable[[int], None] = lambda round: None,
    at_once: int = 1,
    memory: float = 0.0,
    engine: str = "",
    clients: int = 0,
) -> float:
    """Seconds a round, of `at_once` clients side by side or by another `engine`, of so many `clients` (0: all), with so
    many GB of their data held; `watch` is told of every round as it begins."""
    ticks: list[float] = []
    algorithm = method.run

    def ticking(fed: Federation) -> None:
        numbered = fed.rounds

        def rounds_of() -> Iterator[int]:
            for round in numbered():
                ticks.append(now(device))
                watch(round)
                yield round

        fed.rounds = rounds_of  # type: ignore[method-assign]
        algorithm(fed)

    object.__setattr__(method, "run", ticking)  # methods are frozen
    recipe = Recipe(
        system="bench",
        device=device,
        task={"name": "bench"},
        method={"name": "bench"},
        engine={"name": engine or ("local" if at_once == 1 else "streams")}
        | ({"at_once": at_once} if at_once > 1 else {}),
        data=DataConfig(memory=memory),
        train=config,
        round=RoundConfig(rounds=WARM_UP + rounds + 1, evaluate_every=0, clients=clients),
    )
    with tempfile.TemporaryDirectory() as folder:
        run(recipe, Path(folder) / "run", task=task, method=method, quiet=True)
    return (ticks[-1] - ticks[WARM_UP]) / rounds


def plain(task: Task, config: TrainConfig, rounds: int, device: str) -> float:
    """Seconds a round of a loop as one writes it: fp32, torch's optimizer and batch norm, a state dict for every
    client."""
    with patch("fedreel.kernels.norm._works", return_value=False):
        return _plain(task, config, rounds, device)


def _plain(task: Task, config: TrainConfig, rounds: int, device: str) -> float:
    population = task.population(None, 0)
    torch.manual_seed(0)
    model = task.model().to(device).train()
    server = copy.deepcopy(model.state_dict())
    began = 0.0
    for round in range(WARM_UP + rounds):
        if round == WARM_UP:
            began = now(device)
        updates = []
        for client in population.clients:
            model.load_state_dict(server)
            optimizer: torch.optim.Optimizer = (
                torch.optim.Adam(model.parameters(), config.lr, weight_decay=config.weight_decay)
                if config.optimizer == "adam"
                else torch.optim.SGD(model.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay)
            )
            generator = torch.Generator().manual_seed(round)
            examples = population.data(client).train
            for _ in range(config.epochs):
                for batch in examples.batches(config.batch_size, generator):
                    seen = task.augment(batch)
                    loss: Tensor = task.loss(task.forward(model, seen), seen)
                    optimizer.zero_grad()
                    loss.backward()
                    if config.clip_norm:
                        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
                    optimizer.step()
            updates.append(copy.deepcopy(model.state_dict()))
        server = {
            name: torch.stack([u[name] for u in updates]).mean(0) if t.is_floating_point() else t
            for name, t in server.items()
        }
    return (now(device) - began) / rounds
