"""Where the time of a training step goes on a GPU: the kernels of a recorded step, by kind and by name; and one batch
norm, by torch and by the kernels here.

    python bench/step_kernels.py

ResNet-18 with a 3x3 stem on 128 images of 32 pixels (Adam), and R3D-18 on 4 clips of 16 x 112 x 112 (SGD), both bf16,
as `bench/fedlid_gpu.py` and `bench/pretrain_gpu.py` train them. The last line is one JSON object.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fedlid_gpu
import pretrain_gpu
from fedreel.config import TrainConfig
from fedreel.core.capture import Recorder
from fedreel.core.optim import make_optimizer
from fedreel.core.task import Task
from fedreel.core.training import fit
from fedreel.kernels.norm import fused
from fedreel.machine.device import pick_device
from fedreel.models.r3d import R3DConfig
from fedreel.models.resnet import ResNet18Config
from loops import now

DEVICE = "cuda"
STEPS, SHOWN = 40, 14
OURS = ("_moments", "_statistics", "_applied", "_gradient", "_parameters")  # kernels/norm_triton.py
KINDS = {  # of kernels, by what is in their names; the first that fits
    "batch norm": ("batch_norm", "bn_fw", "bn_bw", "batchnorm", "welford", *OURS),
    "convolution": ("conv", "xmma", "gemm", "cutlass", "wgrad", "dgrad", "nvjet", "sm90", "implicit"),
    "copies": ("copy", "memcpy", "memset", "nchwtonhwc", "nhwctonchw", "cat"),
    "optimizer": ("multi_tensor", "adam", "lpnorm"),
    "elementwise": ("elementwise", "threshold", "clamp", "relu"),
}


def kind(name: str) -> str:
    small = name.lower()
    return next((k for k, parts in KINDS.items() if any(part in small for part in parts)), "other")


def profiled(task: Task, config: TrainConfig) -> tuple[float, Counter[str]]:
    """Milliseconds a step, and of each kernel in it."""
    model = task.model().to(DEVICE)
    optimizer = make_optimizer(model.parameters(), config)
    optimizer.reset(config.lr)
    recorder, generator = Recorder(), torch.Generator().manual_seed(0)
    examples = task.population(None, 0).data("0").train
    assert len(examples) == STEPS * config.batch_size

    def train() -> None:
        fit(model, task, examples, optimizer, config, epochs=1, generator=generator, recorder=recorder)

    train()
    began = now(DEVICE)
    train()
    took = now(DEVICE) - began
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        train()
        torch.cuda.synchronize()
    found: Counter[str] = Counter()
    for event in trace.events():
        if event.device_type.name == "CUDA":
            found[event.name] += event.time_range.elapsed_us() / 1000 / STEPS
    return 1000 * took / STEPS, found


def milliseconds(work: Callable[[], Any], times: int = 50) -> float:
    for _ in range(5):
        work()
    began = now(DEVICE)
    for _ in range(times):
        work()
    return 1000 * (now(DEVICE) - began) / times


def norms(dtype: torch.dtype) -> dict[str, float]:
    """Forward and backward of a batch norm of the first stage's size, with a shortcut and ReLU, as a graph."""
    norm = nn.BatchNorm2d(64).to(DEVICE)
    made = torch.randn(3, 128, 64, 32, 32, device=DEVICE, dtype=dtype)
    x, shortcut, given = (t.to(memory_format=torch.channels_last) for t in made)
    for t in (x, shortcut):
        t.requires_grad_()
    ways: dict[str, Callable[[], Tensor]] = {
        "torch": lambda: torch.relu(norm(x) + shortcut),
        "fused": lambda: fused(norm, x, shortcut, "relu"),
    }
    found = {}
    for name, way in ways.items():

        def step(way: Callable[[], Tensor] = way) -> None:
            torch.autograd.grad(way(), (x, shortcut, norm.weight), given)

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        found[name] = milliseconds(graph.replay)
    return found


def main() -> None:
    pick_device(DEVICE)
    image = fedlid_gpu.Random(classes=100, backbone=ResNet18Config(small_stem=True), size=32, images=STEPS * 128)
    adam = TrainConfig(batch_size=128, optimizer="adam", lr=1e-3, precision="bf16")
    video = pretrain_gpu.Random(backbone=R3DConfig(bn_eps=1e-3), frames=16, size=112, clips=STEPS * 4)
    sgd = TrainConfig(batch_size=4, lr=0.01, weight_decay=1e-4, clip_norm=40.0, precision="bf16")
    result: dict[str, Any] = {"bench": "step_kernels"}
    for name, task, config in (("ResNet-18, 3x3 stem", image, adam), ("R3D-18", video, sgd)):
        took, kernels = profiled(task, config)
        kinds: Counter[str] = Counter()
        for kernel, spent in kernels.items():
            kinds[kind(kernel)] += spent
        print(f"{name}: {took:.2f} ms a step, {sum(kernels.values()):.2f} ms of kernels")
        for label, spent in kinds.most_common():
            print(f"  {label:20}{spent:8.3f} ms")
        for kernel, spent in kernels.most_common(SHOWN):
            print(f"    {spent:8.3f} ms  {kind(kernel):12} {kernel[:100]}")
        result[name] = {"step_ms": took, **kinds}
    for dtype in (torch.bfloat16, torch.float32):
        found = norms(dtype)
        print(f"a batch norm, {dtype}: " + ", ".join(f"{name} {spent:.3f} ms" for name, spent in found.items()))
        result[f"batch norm, {dtype}"] = found
    print(json.dumps({**result, "device": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
