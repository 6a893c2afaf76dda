"""Engines on one GPU against bare PyTorch: clients that are stacked, side by side, and one after another.

    python bench/stacked_gpu.py cnn linear summaries clips recordings sizes

- `cnn`, `linear`: the job of `engine.py` (1,000 users, 50 a round, batch 10, one epoch), clients a second; bare: 50
  clients stacked by hand, in Python and as one CUDA graph
- `summaries`: 64 clients that train an attention summarizer of 1,024 features on videos of 300 steps, batch 1, steps
  of clients a second; bare: the same stacked as one CUDA graph
- `clips`: R3D-18, batch 4, views made on the GPU, five clients at once, clips a second; bare: five models whose
  recorded steps, the same kernels, are replayed on five streams
- `recordings`: how often a step is recorded in a run of each method, and of how many jobs
- `sizes`: engines on networks between these, with the operations and kernels of a step

fedreel runs its whole product path (run directory, ledger, admission, checkpoints). Each part prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

sys.path.append(str(Path(__file__).parent / "engine_jobs"))
from common import BATCH, CLIENTS_PER_ROUND, IMAGES, LEARNING_RATE, USERS, Job, build_model
from fedreel_job import Images

from fedreel.config import TrainConfig, load_recipe
from fedreel.core.capture import Recorder
from fedreel.core.client import Worker
from fedreel.core.optim import make_optimizer
from fedreel.core.task import ClientData, Population, Task
from fedreel.core.training import fit
from fedreel.engines.step_size import StepSize, measured_step
from fedreel.machine.device import pick_device
from fedreel.methods.fedavg import FedAvg
from fedreel.methods.fedprox import FedProx
from fedreel.methods.fedvssl import FedVSSL
from fedreel.methods.moon import MOON
from fedreel.models.r3d import R3DConfig
from fedreel.models.resnet import ResNet18Config
from fedreel.runs.run import run
from fedreel.tasks.summary.split import Videos
from fedreel.tasks.summary.task import Summary
from loops import federated, now

VIDEOS, STEPS, WIDTH, OWNERS = 10, 300, 1024, 64
SIDE_BY_SIDE = 5


def users(model: str, device: str) -> Images:
    """The job of `engine.py`, its images where they are trained on."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(USERS, IMAGES, 3, 32, 32, generator=generator) - 0.5
    labels = torch.randint(10, (USERS, IMAGES), generator=generator)
    return Images(Job(images.to(device), labels.to(device), []), model)


def pfl_job(model: str, rounds: int, device: str) -> dict[str, float]:
    task, config = users(model, device), TrainConfig(batch_size=BATCH, lr=LEARNING_RATE)
    rates = {
        engine: CLIENTS_PER_ROUND
        / federated(task, FedAvg(), config, rounds, device, engine=engine, clients=CLIENTS_PER_ROUND)
        for engine in ("local", "streams", "vector", "auto")
    }
    batches = [
        (task.job.images[:CLIENTS_PER_ROUND, s : s + BATCH], task.job.labels[:CLIENTS_PER_ROUND, s : s + BATCH])
        for s in range(0, IMAGES, BATCH)
    ]

    def loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(network(images), labels)

    for graph in (False, True) if device == "cuda" else (False,):
        seconds = stacked_by_hand(build_model(model).to(device), loss, batches, LEARNING_RATE, rounds, graph, device)
        rates["bare, stacked" + (", one graph" if graph else "")] = CLIENTS_PER_ROUND / seconds
    return rates


class Loss(nn.Module):
    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Tensor) -> Tensor:
        return self.loss(self.model, *batch)


def stacked_by_hand(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batches: list[tuple[Tensor, ...]],
    lr: float,
    rounds: int,
    graph: bool,
    device: str,
) -> float:
    """Seconds a round of clients whose batches are stacked: weights loaded, a step a batch, weights averaged."""
    clients, whole = len(batches[0][0]), Loss(model.train(), loss)
    server = {n: p.detach().clone() for n, p in whole.named_parameters()}
    rows = {n: p.expand(clients, *p.shape).clone() for n, p in server.items()}
    inputs = tuple(t.clone() for t in batches[0])
    step_of = vmap(grad(lambda params, batch: functional_call(whole, params, batch)), randomness="different")

    def step() -> None:
        for name, g in step_of(rows, inputs).items():
            rows[name].sub_(g, alpha=lr)

    make: Callable[[], Any] = step
    if graph:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        make = captured.replay
    began = 0.0
    for round in range(rounds + 2):
        if round == 2:
            began = now(device)
        for name, row in rows.items():
            row.copy_(server[name])
        for batch in batches:
            for mine, given in zip(inputs, batch):
                mine.copy_(given)
            make()
        server = {n: row.mean(0) for n, row in rows.items()}
    return (now(device) - began) / rounds


@dataclass(frozen=True)
class Summaries(Summary):
    """The task on videos of random features."""

    device: str = "cuda"
    owners: int = OWNERS

    def population(self, data: Any, seed: int) -> Any:
        return SummaryOwners(self)


class SummaryOwners(Population):
    def __init__(self, task: Summaries) -> None:
        torch.manual_seed(0)
        self.clients = tuple(map(str, range(task.owners)))
        self.seen = torch.randn(task.owners, VIDEOS, STEPS, task.width_in, device=task.device)
        self.wanted = torch.rand(task.owners, VIDEOS, STEPS, device=task.device)
        self._made: dict[str, Videos] = {}

    def data(self, client: str) -> ClientData:
        if client not in self._made:
            i = int(client)
            nothing: list[Any] = [None] * VIDEOS
            self._made[client] = Videos([*self.seen[i]], [*self.wanted[i]], nothing)
        return ClientData(self._made[client], Videos([], [], []), {"frames": float(VIDEOS * STEPS)})


def summaries(rounds: int, device: str, width: int, owners: int) -> dict[str, float]:
    task = Summaries(
        summarizer="attention", features="given", width_in=width, dropout=0.5, device=device, owners=owners
    )
    config = TrainConfig(batch_size=1, lr=0.01, epochs=3)
    count = owners * VIDEOS * config.epochs
    rates = {
        e: count / federated(task, FedAvg(), config, rounds, device, engine=e) for e in ("local", "vector", "auto")
    }
    made = SummaryOwners(task)
    mask = torch.ones(owners, 1, STEPS, dtype=torch.bool, device=device)
    batches = [(made.seen[:, i : i + 1], mask, made.wanted[:, i : i + 1]) for i in range(VIDEOS)] * config.epochs

    def loss(model: nn.Module, *batch: Tensor) -> Tensor:
        return task.loss(task.forward(model, batch), batch)

    model = task.model().to(device)
    rates["bare, stacked"] = count / stacked_by_hand(model, loss, batches, 0.01, rounds, False, device)
    if device == "cuda":
        rates["bare, stacked, one graph"] = count / stacked_by_hand(model, loss, batches, 0.01, rounds, True, device)
    return rates


def clips(rounds: int, count: int) -> dict[str, float]:
    import pretrain_gpu

    task = pretrain_gpu.Random(backbone=R3DConfig(bn_eps=1e-3), frames=16, size=112, clips=count)
    config = TrainConfig(batch_size=4, lr=0.01, weight_decay=1e-4, clip_norm=40.0, precision="bf16")
    whole, rates = SIDE_BY_SIDE * count, {}
    for name, at_once in (("local", 1), ("streams, 5 at once", SIDE_BY_SIDE)):
        rates[name] = whole / federated(task, FedVSSL(), config, rounds, "cuda", at_once=at_once)
    rates["auto"] = whole / federated(task, FedVSSL(), config, rounds, "cuda", engine="auto")
    rates["bare, 5 graphs"] = bare_clips(task, config, rounds)
    return rates


def bare_clips(task: Task, config: TrainConfig, rounds: int) -> float:
    """Clips a second of models whose recorded steps are replayed side by side."""
    examples, lanes = task.population(None, 0).data("0").train, []
    for _ in range(SIDE_BY_SIDE):
        model, recorder, stream = task.model().to("cuda"), Recorder(), torch.cuda.Stream()
        optimizer = make_optimizer(model.parameters(), config)
        optimizer.reset(config.lr)
        with torch.cuda.stream(stream):
            generator = torch.Generator().manual_seed(0)
            fit(model, task, examples, optimizer, config, epochs=1, generator=generator, recorder=recorder)
        lanes.append((stream, next(iter(recorder.kept.values())), model, optimizer))
    batches = [*examples.batches(config.batch_size, torch.Generator().manual_seed(1))]
    batches = [b for b in batches if len(b[0]) == config.batch_size]
    began = now("cuda")
    for _ in range(rounds):
        for batch in batches:
            for stream, recording, *_ in lanes:
                with torch.cuda.stream(stream):
                    recording.replay(batch)
    return rounds * SIDE_BY_SIDE * config.batch_size * len(batches) / (now("cuda") - began)


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Recordings and training jobs since."""
    found = {"recordings": 0, "jobs": 0}
    record, leave = Recorder.record, Worker.leave

    def recording(self: Recorder, *args: Any) -> Any:
        found["recordings"] += 1
        return record(self, *args)

    def leaving(self: Worker, *args: Any) -> Any:
        found["jobs"] += 1
        return leave(self, *args)

    with patch.object(Recorder, "record", recording), patch.object(Worker, "leave", leaving):
        yield found


def recordings(rounds: int, device: str) -> dict[str, dict[str, float]]:
    """Of FedProx and MOON on the CNN of `cnn`, of FSAR on the playground."""
    task, config = users("cnn", device), TrainConfig(batch_size=BATCH, lr=LEARNING_RATE)
    results: dict[str, dict[str, float]] = {}
    for method in (FedAvg(), FedProx(mu=0.1), MOON()):
        for engine in ("local", "vector"):
            with counted() as found:
                seconds = federated(task, method, config, rounds, device, engine=engine, clients=CLIENTS_PER_ROUND)
            results[f"{type(method).__name__}, {engine}"] = {**found, "clients_per_second": CLIENTS_PER_ROUND / seconds}
    for engine in ("local", "vector"):
        settings = {"round.rounds": rounds + 1, "device": device, "engine.name": engine, "round.trust": False}
        with counted() as found, tempfile.TemporaryDirectory() as folder:
            summary = run(load_recipe("fsar", settings), Path(folder) / "run", quiet=True).summary
        results[f"FSAR, {engine}"] = {**found, "wall_seconds": summary["wall_seconds"]}
    return results


def sizes(rounds: int, device: str) -> dict[str, Any]:
    """ResNet-18 on 32 pixels, ten clients, with batches of several sizes."""
    import fedlid_gpu

    results: dict[str, Any] = {}
    for small, batch in ((False, 8), (False, 32), (True, 8), (True, 32)):
        backbone = ResNet18Config(small_stem=small)
        task = fedlid_gpu.Random(classes=100, backbone=backbone, size=32, images=20 * batch)
        config = TrainConfig(batch_size=batch, lr=0.01)
        sized: list[StepSize] = []

        def noting(worker: Worker, sized: list[StepSize] = sized) -> StepSize:
            sized.append(measured_step(worker))
            return StepSize(1e12, 1000)  # so that `streams` is what it says

        rates = {}
        for engine in ("local", "streams", "vector"):
            with patch("fedreel.engines.streams.measured_step", noting):
                rates[engine] = 10 * 20 / federated(task, FedAvg(), config, rounds, device, engine=engine)
        name = f"ResNet-18, {'3x3' if small else '7x7'} stem, batch {batch}"
        results[name] = {"operations": sized[0].operations, "kernels": sized[0].kernels, "steps_per_second": rates}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("cnn", "linear", "summaries", "clips", "recordings", "sizes")
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--clips", type=int, default=200, help="of each client, for `clips`")
    parser.add_argument("--width", type=int, default=WIDTH, help="features of a step of a video, for `summaries`")
    parser.add_argument("--owners", type=int, default=OWNERS, help="clients of `summaries`")
    arguments = parser.parse_args()
    pick_device(arguments.device)
    rounds, device = arguments.rounds, arguments.device
    for part in arguments.parts:
        work: dict[str, Callable[[], dict[str, Any]]] = {
            "cnn": lambda: pfl_job("cnn", rounds, device),
            "linear": lambda: pfl_job("linear", rounds, device),
            "summaries": lambda: summaries(rounds, device, arguments.width, arguments.owners),
            "clips": lambda: clips(rounds, arguments.clips),
            "recordings": lambda: recordings(rounds, device),
            "sizes": lambda: sizes(rounds, device),
        }
        name = torch.cuda.get_device_name() if device == "cuda" else device
        print(json.dumps({"bench": "stacked_gpu", "part": part, "device": name, **work[part]()}), flush=True)


if __name__ == "__main__":
    main()
