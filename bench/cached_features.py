"""An epoch of a head on a frozen backbone: from kept features, against looking at every clip again.

    python bench/cached_features.py

EfficientNet-Lite0, with random weights, over the frames of random clips. Both ways train the same head on the same
clips by fedreel's training loop; the first look, which writes the files, and reading them again are timed apart. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

from fedreel.config import TrainConfig
from fedreel.core.optim import make_optimizer
from fedreel.core.task import Examples, Tensors
from fedreel.core.training import fit
from fedreel.machine.device import pick_device
from fedreel.models.frames import FramesConfig
from fedreel.tasks.recognition.task import Recognition


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clips", type=int, default=32)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    device = pick_device(args.device)
    task = Recognition(classes=2, frames=args.frames, size=args.size, head="motion", backbone=FramesConfig(tune="head"))
    model = task.model().to(device)
    shape = (args.clips, args.frames, args.size, args.size, 3)
    clips = Tensors((torch.randint(0, 256, shape, dtype=torch.uint8), torch.arange(args.clips) % 2))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDREEL_CACHE"] = folder
        first, _ = timed(lambda: task.prepared(model, clips, True))
        read, kept = timed(lambda: task.prepared(model, clips, True))
    uncached = epoch(task, model, clips.to(device))
    cached = epoch(task, model, kept.to(device))
    for what, seconds in (
        ("first look, kept", first),
        ("read again", read),
        ("epoch, uncached", uncached),
        ("epoch, cached", cached),
    ):
        print(f"{what:20} {1000 * seconds:10.1f} ms")
    ratio = uncached / cached
    print(f"a cached epoch is {ratio:.0f} times faster")
    numbers = {"first_s": first, "read_s": read, "uncached_s": uncached, "cached_s": cached, "faster": ratio}
    print(json.dumps({"bench": "cached_features", "clips": args.clips, "device": device.type, **numbers}))


def epoch(task: Recognition, model: torch.nn.Module, examples: Examples) -> float:
    """The median of five epochs (one, where that takes long), after one batch that is not timed."""
    config = TrainConfig(batch_size=8, lr=0.001, momentum=0.9, cuda_graph=False)
    optimizer, generator = make_optimizer(model.parameters(), config), torch.Generator()

    def train() -> object:
        return fit(model, task, examples, optimizer, config, epochs=1, generator=generator)

    once, _ = timed(train)
    return statistics.median(timed(train)[0] for _ in range(1 if once > 2 else 5))


def timed(work: Callable[[], Examples | object]) -> tuple[float, Examples]:
    began = time.perf_counter()
    found = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began, found  # type: ignore[return-value]


if __name__ == "__main__":
    main()
