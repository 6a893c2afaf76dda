"""FedLID on a GPU: small local jobs against a plain PyTorch loop, and the server's contrastive phase with its views
against the same steps on views that are ready.

    python bench/fedlid_gpu.py

Ten clients with 1,000 images of 32 pixels each, ten local epochs a round, Adam, batch 128, crops and flips on the
device in both; ResNet-18 with torchvision's stem, and with a 3x3 stem of stride 1, which has far more arithmetic.
fedreel runs its whole product path (run directory, ledger, checkpoints). The server: 10,000 images, batch 256, NT-Xent,
3x3 stem. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.federation import Federation
from fedreel.core.run import run
from fedreel.core.study import Study
from fedreel.core.task import ClientData, Population, Subject, Tensors
from fedreel.methods.fedavg import FedAvg
from fedreel.tasks.contrast import Contrast
from fedreel.tasks.image import Image

CLIENTS, IMAGES, SIDE, CLASSES, DEVICE = 10, 1000, 32, 100, "cuda"
WARM_UP = 1  # rounds, or phases, that are not timed


class Owners(Population):
    """Clients whose images and labels are random."""

    def __init__(self) -> None:
        self.clients = tuple(map(str, range(CLIENTS)))
        self.images = images(CLIENTS * IMAGES).view(CLIENTS, IMAGES, SIDE, SIDE, 3)
        self.labels = torch.randint(CLASSES, (CLIENTS, IMAGES), device=DEVICE)

    def data(self, client: str) -> ClientData:
        rows = Tensors((self.images[int(client)], self.labels[int(client)]))
        return ClientData(rows, Tensors(tuple(t[:0] for t in rows.tensors)), {})


def images(count: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randint(256, (count, SIDE, SIDE, 3), dtype=torch.uint8, device=DEVICE)


@dataclass(frozen=True)
class Random(Image):
    """The task on such clients."""

    def population(self, data: Any, seed: int) -> Population:
        return Owners()


@dataclass(frozen=True)
class Timed(FedAvg):
    """FedAvg that notes when its rounds begin."""

    ticks: Any = None

    def run(self, fed: Federation) -> None:
        rounds = fed.rounds

        def ticking() -> Iterator[int]:
            for round in rounds():
                torch.cuda.synchronize()
                self.ticks.append(time.perf_counter())
                yield round

        fed.rounds = ticking  # type: ignore[method-assign]
        super().run(fed)


def federated(task: Random, config: TrainConfig, rounds: int) -> float:
    """Seconds a round."""
    method = Timed(ticks=[])
    recipe = Recipe(
        system="bench",
        device=DEVICE,
        task={"name": "image"},
        method={"name": "fedavg"},
        train=config,
        round=RoundConfig(rounds=WARM_UP + rounds + 1, evaluate_every=0),
    )
    with tempfile.TemporaryDirectory() as folder:
        run(recipe, Path(folder) / "run", task=task, method=method, quiet=True)
    return (method.ticks[-1] - method.ticks[WARM_UP]) / rounds


def plain(task: Random, config: TrainConfig, rounds: int) -> float:
    """Seconds a round of a loop as one writes it."""
    population = task.population(None, 0)
    model = task.model().to(DEVICE).train()
    server = copy.deepcopy(model.state_dict())
    began = 0.0
    for round in range(WARM_UP + rounds):
        if round == WARM_UP:
            torch.cuda.synchronize()
            began = time.perf_counter()
        updates = []
        for client in population.clients:
            model.load_state_dict(server)
            optimizer = torch.optim.Adam(model.parameters(), config.lr)
            generator = torch.Generator().manual_seed(round)
            examples = population.data(client).train
            for _ in range(config.epochs):
                for batch in examples.batches(config.batch_size, generator):
                    seen = task.augment(batch)
                    loss = task.loss(task.forward(model, seen), seen)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            updates.append(copy.deepcopy(model.state_dict()))
        server = {
            name: sum(u[name] for u in updates) / len(updates) if t.is_floating_point() else t
            for name, t in server.items()
        }
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / rounds


@dataclass(frozen=True)
class Ready(Contrast):
    """The lesson on views that are made: a batch is both views of each image."""

    def augment(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.cat(batch),)


def server_phase(subject: Subject, config: TrainConfig) -> float:
    """Seconds of one phase."""
    study = Study(subject, config, 1, 0, torch.device(DEVICE))
    given = study.weights.clone()
    began = 0.0
    for phase in range(WARM_UP + 1):
        if phase == WARM_UP:
            torch.cuda.synchronize()
            began = time.perf_counter()
        study.learn(given, None, phase + 1)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of fedreel; the plain loop gets one")
    arguments = parser.parse_args()
    local = TrainConfig(epochs=10, batch_size=128, optimizer="adam", lr=1e-3)
    times, ratios = {}, {}
    for stem, small in (("7x7", False), ("3x3", True)):
        task = Random(classes=CLASSES, network="resnet18", size=SIDE, small_stem=small)
        times[f"clients, {stem} stem, plain loop, fp32"] = plain(task, local, 1)
        for precision in ("fp32", "bf16"):
            config = replace(local, precision=precision)
            times[f"clients, {stem} stem, fedreel, {precision}"] = federated(task, config, arguments.rounds)
        base, *ours = [seconds for name, seconds in times.items() if stem in name]
        ratios[f"faster_than_plain_{stem}"] = base / min(ours)
    own = images(10_000)
    config = TrainConfig(epochs=3, batch_size=256, optimizer="adam", lr=1e-3, precision="bf16")
    subject = task.subject("views", Tensors((own,)), 1.0)
    times["server, views made in each step"] = server_phase(subject, config)
    lesson = subject.lesson
    assert isinstance(lesson, Contrast)
    with torch.no_grad():
        made = tuple(torch.cat([task.views.random(some) for some in own.split(500)]) for _ in range(2))
    ready = Ready(lesson.network_input, lesson.views, lesson.temperature, lesson.raw_anchor)
    times["server, views ready"] = server_phase(replace(subject, lesson=ready, examples=Tensors(made)), config)
    print(f"{'':40}{'seconds':>10}{'images/s':>12}")
    counts = {"clients": CLIENTS * IMAGES * local.epochs, "server": 2 * len(own) * config.epochs}
    for name, seconds in times.items():
        print(f"{name:40}{seconds:10.2f}{counts[name.partition(',')[0]] / seconds:12.0f}")
    ratios["server_with_views_to_ready"] = times["server, views ready"] / times["server, views made in each step"]
    print(json.dumps({"bench": "fedlid_gpu", **ratios, "seconds": times, "device": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
