"""Federated pretraining of R3D-18 on a GPU against a plain PyTorch loop of the same steps, input pipeline included.

    python bench/pretrain_gpu.py

Five clients a round, batch 4, one epoch, 16 frames of 112 pixels, the speed pretext. Frames lie on the GPU as bytes of
128 pixels; windows, crops, flips and colours are made there, in both. fedreel runs its whole product path (run
directory, ledger, admission, checkpoints). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from fedreel.config import TrainConfig
from fedreel.core.task import ClientData, Population
from fedreel.methods.fedvssl import FedVSSL
from fedreel.models.r3d import R3DConfig
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.pretrain.windows import Held, Windows
from loops import WARM_UP, federated, plain

CLIENTS, BATCH, SIDE = 5, 4, 128
DEVICE = "cuda"
LONG = 2000.0  # microseconds: gaps in a step and between steps are shorter


class Owners(Population):
    """Clients whose clips are random bytes."""

    def __init__(self, clips: int, task: Pretrain) -> None:
        torch.manual_seed(0)
        asks, device = task._asks, torch.device(DEVICE)
        frames = torch.randint(256, (clips, asks.span, SIDE, SIDE, 3), dtype=torch.uint8, device=device)
        self.windows = Windows(Held(tuple(frames), SIDE, device), asks)
        self.clients = tuple(map(str, range(CLIENTS)))

    def data(self, client: str) -> ClientData:
        nothing = Windows(Held((), SIDE, torch.device(DEVICE)), self.windows.asks)
        return ClientData(self.windows, nothing, {"frames": float(len(self.windows) * self.windows.asks.span)})


@dataclass(frozen=True)
class Random(Pretrain):
    """The task on such clients."""

    clips: int = 0

    def population(self, data: Any, seed: int) -> Population:
        return Owners(self.clips, self)


KEPT: list[tuple[Tensor, Tensor]] = []


@dataclass(frozen=True)
class Ready(Random):
    """The task with one question that is ready, always the same: training that has no input pipeline."""

    def augment(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        if not KEPT:
            KEPT.append(super().augment(batch))
        return KEPT[0]


def idle(trace: Any) -> tuple[float, float]:
    """Share of the time between the first and the last kernel in which none was running; and in gaps shorter than
    LONG, such as lie in steps and between them."""
    spans = sorted((e.time_range.start, e.time_range.end) for e in trace.events() if e.device_type.name == "CUDA")
    gaps, end = [], spans[0][0]
    for start, stop in spans:
        gaps.append(max(0.0, start - end))
        end = max(end, stop)
    whole = end - spans[0][0]
    return sum(gaps) / whole, sum(gap for gap in gaps if gap < LONG) / whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=300, help="of each client")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    task = Random(backbone=R3DConfig(bn_eps=1e-3), frames=16, size=112, clips=arguments.clips)
    config = TrainConfig(batch_size=BATCH, lr=0.01, weight_decay=1e-4, clip_norm=40.0, precision="bf16")
    count = CLIENTS * arguments.clips
    rates = {"plain loop, fp32": count / plain(task, config, arguments.rounds, DEVICE)}
    ready = Ready(**{f.name: getattr(task, f.name) for f in fields(task)})
    for name, asked, changed in (
        ("fedreel, fp32, in Python", task, replace(config, precision="fp32", cuda_graph=False)),
        ("fedreel, fp32", task, replace(config, precision="fp32")),
        ("fedreel, bf16", task, config),
        ("fedreel, bf16, questions ready", ready, config),
    ):
        rates[name] = count / federated(asked, FedVSSL(), changed, arguments.rounds, DEVICE)
    rates["fedreel, bf16, 5 clients at once"] = count / federated(
        task, FedVSSL(), config, arguments.rounds, DEVICE, at_once=CLIENTS
    )
    trace = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    during = {WARM_UP + 1: trace.start, WARM_UP + 2: trace.stop}
    traced = replace(task, clips=100)
    federated(traced, FedVSSL(), config, 1, DEVICE, lambda round: during.get(round, lambda: None)())
    base = rates["plain loop, fp32"]
    print(f"{'':36}{'clips/s':>10}{'to plain':>10}")
    for name, rate in rates.items():
        print(f"{name:36}{rate:10.0f}{rate / base:10.2f}")
    waiting, between = idle(trace)
    print(f"GPU without work in a round of fedreel, bf16: {100 * waiting:.1f} % of the time,")
    print(f"in gaps of less than {LONG / 1000:g} ms {100 * between:.1f} %")
    found = {
        "bench": "pretrain_gpu",
        "faster_than_plain": rates["fedreel, bf16"] / base,
        "at_once_faster_than_plain": rates["fedreel, bf16, 5 clients at once"] / base,
        "with_pipeline_to_ready": rates["fedreel, bf16"] / rates["fedreel, bf16, questions ready"],
        "gpu_idle_share": waiting,
        "gpu_idle_share_at_steps": between,
    }
    print(json.dumps({**found, "clips_per_second": rates, "device": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
