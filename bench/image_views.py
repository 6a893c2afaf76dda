"""Random views of a batch of images at once: fedreel's and, where it is installed, kornia's of the same make."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedreel.machine.device import pick_device
from fedreel.tasks.vision.contrast_views import HUE, JITTER, SIGMA, VALUES, SimCLR

IMAGES, SIDES = 256, (32, 64)
View = Callable[[Tensor], Tensor]


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = pick_device(arguments.device)
    print(f"{device.type}, {arguments.threads} threads, torch {torch.__version__}")
    print(f"{IMAGES} images, bytes on the device: the fastest of {arguments.repeat} calls")
    rates: dict[str, dict[str, int]] = {}
    faster: dict[str, float | None] = {}
    wrong = []
    theirs = kornia()
    for side in SIDES:
        job = f"{side} px"
        images = torch.randint(0, 256, (IMAGES, side, side, 3), dtype=torch.uint8, device=device)
        contenders: dict[str, View] = {"fedreel": SimCLR(side).random}
        if theirs is not None:
            contenders["kornia"] = theirs(SimCLR(side))
        print(f"\n{job:<30}{'images/s':>12}{'of fedreel':>12}")
        rates[job] = {}
        for name, view in contenders.items():
            if view(images).shape != images.shape:
                wrong.append(f"{job}: {name}")
            rates[job][name] = round(IMAGES / fastest(view, images, arguments.repeat))
            print(f"  {name:<28}{rates[job][name]:>12,}{rates[job][name] / rates[job]['fedreel']:>12.2f}")
        faster[job] = round(rates[job]["fedreel"] / rates[job]["kornia"], 2) if "kornia" in rates[job] else None
    print("\n" + json.dumps({"faster_than_kornia": faster, "images_per_s": rates, "wrong_shape": wrong}))
    return 1 if wrong else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=20, help="calls of each contender; the fastest counts")
    parser.add_argument("--threads", type=int, default=1, help="cores")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args()
    if min(arguments.repeat, arguments.threads) < 1:
        parser.error("--repeat and --threads must be at least 1")
    return arguments


def kornia() -> Callable[[SimCLR], View] | None:
    try:
        augmentation = importlib.import_module("kornia.augmentation")
    except ImportError as error:
        print(f"kornia cannot be imported ({error}): left out", file=sys.stderr)
        return None

    def like(ours: SimCLR) -> View:
        kernel, values = max(3, ours.size // 10 | 1), VALUES * ours.strength
        random = torch.nn.Sequential(
            augmentation.RandomResizedCrop((ours.size, ours.size), scale=ours.scale, ratio=ours.ratio),
            augmentation.RandomHorizontalFlip(p=ours.flip),
            augmentation.ColorJitter(values, values, values, HUE * ours.strength, p=JITTER),
            augmentation.RandomGrayscale(p=ours.grey),
            augmentation.RandomGaussianBlur((kernel, kernel), SIGMA, p=ours.blur),
        )

        def view(images: Tensor) -> Tensor:
            return 255 * random(images.permute(0, 3, 1, 2).float() / 255).permute(0, 2, 3, 1)

        return view

    return like


def fastest(view: View, images: Tensor, repeat: int) -> float:
    """Seconds of one call."""
    best = float("inf")
    for _ in range(repeat):
        _wait(images)
        began = time.perf_counter()
        view(images)
        _wait(images)
        best = min(best, time.perf_counter() - began)
    return best


def _wait(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
