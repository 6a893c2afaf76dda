"""FedLID on a GPU: small local jobs against a plain PyTorch loop, and the server's contrastive phase with its views
against the same steps on views that are ready.

    python bench/fedlid_gpu.py

Ten clients with 1,000 images of 32 pixels each, ten local epochs a round, Adam, batch 128, crops and flips on the
device in both; ResNet-18 with torchvision's stem, and with a 3x3 stem of stride 1, which has far more arithmetic.
fedreel runs its whole product path (run directory, ledger, checkpoints), one client after another, and five and ten
at once (the engine `streams`); `faster_than_plain` is the best of them. The server: 10,000 images, batch 256, NT-Xent,
3x3 stem. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedreel.config import TrainConfig
from fedreel.core.abilities import ServerObjective
from fedreel.core.server_training import ServerTraining
from fedreel.core.task import ClientData, Population, Tensors
from fedreel.methods.fedavg import FedAvg
from fedreel.models.resnet import ResNet18Config
from fedreel.tasks.image.task import Image
from fedreel.tasks.vision.contrast import Contrast
from loops import WARM_UP, federated, now, plain

CLIENTS, SIDE, CLASSES = 10, 32, 100
DEVICE = "cuda"


class Owners(Population):
    """Clients whose images and labels are random."""

    def __init__(self, each: int) -> None:
        self.clients = tuple(map(str, range(CLIENTS)))
        self.images = images(CLIENTS * each).view(CLIENTS, each, SIDE, SIDE, 3)
        self.labels = torch.randint(CLASSES, (CLIENTS, each), device=DEVICE)

    def data(self, client: str) -> ClientData:
        rows = Tensors((self.images[int(client)], self.labels[int(client)]))
        return ClientData(rows, Tensors(tuple(t[:0] for t in rows.tensors)), {})


def images(count: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randint(256, (count, SIDE, SIDE, 3), dtype=torch.uint8, device=DEVICE)


@dataclass(frozen=True)
class Random(Image):
    """The task on such clients."""

    images: int = 1000

    def population(self, data: Any, seed: int) -> Population:
        return Owners(self.images)


@dataclass(frozen=True)
class Ready(Contrast):
    """The lesson on views that are made: a batch is both views of each image."""

    def augment(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.cat(batch),)


def server_phase(subject: ServerObjective, config: TrainConfig) -> float:
    """Seconds of one phase."""
    study = ServerTraining(subject, config, 1, 0, torch.device(DEVICE))
    given = study.weights.clone()
    began = 0.0
    for phase in range(WARM_UP + 1):
        if phase == WARM_UP:
            began = now(DEVICE)
        study.train(given, None, phase + 1)
    return now(DEVICE) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of fedreel; the plain loop gets one")
    parser.add_argument("--images", type=int, default=1000, help="of each client; the server has ten times as many")
    arguments = parser.parse_args()
    local = TrainConfig(epochs=10, batch_size=128, optimizer="adam", lr=1e-3)
    times, ratios = {}, {}
    for stem, small in (("7x7", False), ("3x3", True)):
        backbone = ResNet18Config(small_stem=small)
        task = Random(classes=CLASSES, backbone=backbone, size=SIDE, images=arguments.images)
        times[f"clients, {stem} stem, plain loop, fp32"] = plain(task, local, 1, DEVICE)
        for precision, at_once in (("fp32", 1), ("bf16", 1), ("fp32", 5), ("bf16", 5), ("bf16", 10)):
            config = replace(local, precision=precision)
            how = f"{precision}, {at_once} at once" if at_once > 1 else precision
            times[f"clients, {stem} stem, fedreel, {how}"] = federated(
                task, FedAvg(), config, arguments.rounds, DEVICE, at_once=at_once
            )
        base, *ours = [seconds for name, seconds in times.items() if stem in name]
        ratios[f"faster_than_plain_{stem}"] = base / min(ours)
    own = images(10 * arguments.images)
    config = TrainConfig(epochs=3, batch_size=256, optimizer="adam", lr=1e-3, precision="bf16")
    subject = task.server_objective("views", Tensors((own,)), 1.0)
    times["server, views made in each step"] = server_phase(subject, config)
    lesson = subject.objective
    assert isinstance(lesson, Contrast)
    with torch.no_grad():
        made = tuple(torch.cat([task.views.random(some) for some in own.split(500)]) for _ in range(2))
    ready = Ready(lesson.network_input, lesson.views, lesson.temperature, lesson.raw_anchor)
    times["server, views ready"] = server_phase(replace(subject, objective=ready, examples=Tensors(made)), config)
    print(f"{'':48}{'seconds':>10}{'images/s':>12}")
    counts = {"clients": CLIENTS * arguments.images * local.epochs, "server": 2 * len(own) * config.epochs}
    for name, seconds in times.items():
        print(f"{name:48}{seconds:10.2f}{counts[name.partition(',')[0]] / seconds:12.0f}")
    ratios["server_with_views_to_ready"] = times["server, views ready"] / times["server, views made in each step"]
    print(json.dumps({"bench": "fedlid_gpu", **ratios, "seconds": times, "device": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
