"""RoIAlign of all boxes at once against a loop over boxes and samples and, where it is installed, torchvision's."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedreel.kernels.roi_align import roi_align

JOBS = {  # name -> (images, channels, side of the map, boxes an image)
    "4 clips of 112 px, width 64": (4, 512, 14, 3),
    "8 clips of 32 px, width 8": (8, 64, 4, 3),
}
OUTPUT, SAMPLING, SCALE = 5, 2, 1 / 8
Align = Callable[[Tensor, Tensor, Tensor], Tensor]


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    contenders: dict[str, Align] = {"fedreel": at_once, "loop": loop}
    theirs = torchvision()
    if theirs is not None:
        contenders["torchvision"] = theirs
    print(f"{device.type}, {arguments.threads} threads, torch {torch.__version__}")
    print(f"one call and its gradient: the fastest of {arguments.repeat} (of the loop, of 2)")
    faster: dict[str, dict[str, float]] = {}
    milliseconds: dict[str, dict[str, float]] = {}
    wrong = []
    for job, sizes in JOBS.items():
        features, boxes, which = make_data(*sizes, device)
        expected = loop(features, boxes, which)
        print(f"\n{job:<40}{'ms':>10}{'to fedreel':>12}")
        for name, align in contenders.items():
            if not torch.allclose(align(features, boxes, which), expected, atol=1e-4 if device.type == "cpu" else 1e-2):
                wrong.append(f"{job}: {name}")
            seconds = fastest(align, features, boxes, which, arguments.repeat)
            milliseconds.setdefault(job, {})[name] = seconds * 1000
            ratio = milliseconds[job][name] / milliseconds[job]["fedreel"]
            print(f"  {name:<38}{seconds * 1000:>10.3f}{ratio:>12.1f}")
            if name != "fedreel":
                faster.setdefault(job, {})[name] = round(ratio, 2)
    print("\n" + json.dumps({"faster_than": faster, "ms": milliseconds, "disagree": wrong}))
    return 1 if wrong else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=10, help="calls of each contender; the fastest counts")
    parser.add_argument("--threads", type=int, default=1, help="cores")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args()
    if min(arguments.repeat, arguments.threads) < 1:
        parser.error("--repeat and --threads must be at least 1")
    return arguments


def make_data(images: int, channels: int, side: int, each: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    corners = torch.rand(images * each, 2, device=device) * side / SCALE / 2
    boxes = torch.cat([corners, corners + (0.1 + torch.rand_like(corners)) * side / SCALE / 2], dim=1)
    features = torch.randn(images, channels, side, side, device=device, requires_grad=True)
    return features, boxes, torch.arange(images * each, device=device) // each


def at_once(features: Tensor, boxes: Tensor, which: Tensor) -> Tensor:
    return roi_align(features, boxes, which, OUTPUT, SCALE, SAMPLING)


def loop(features: Tensor, boxes: Tensor, which: Tensor) -> Tensor:
    """The definition, for boxes inside the map or at most a cell outside: box by box, sample by sample."""
    height, width = features.shape[2:]
    found = []
    for box, image in zip((boxes * SCALE - 0.5).tolist(), which.tolist()):
        cells = []
        for i in range(OUTPUT * OUTPUT):
            total = torch.zeros(features.shape[1], device=features.device)
            for k in range(SAMPLING * SAMPLING):
                y = box[1] + (box[3] - box[1]) / OUTPUT * (i // OUTPUT + (k // SAMPLING + 0.5) / SAMPLING)
                x = box[0] + (box[2] - box[0]) / OUTPUT * (i % OUTPUT + (k % SAMPLING + 0.5) / SAMPLING)
                y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
                top, left = int(y), int(x)
                for row, share in ((top, top + 1 - y), (min(top + 1, height - 1), y - top)):
                    for column, part in ((left, left + 1 - x), (min(left + 1, width - 1), x - left)):
                        total = total + share * part * features[image, :, row, column]
            cells.append(total / SAMPLING**2)
        found.append(torch.stack(cells, dim=1).unflatten(1, (OUTPUT, OUTPUT)))
    return torch.stack(found)


def torchvision() -> Align | None:
    try:
        ops = importlib.import_module("torchvision.ops")
    except (ImportError, RuntimeError):  # the latter where it was built for another torch
        print("torchvision cannot be imported: left out", file=sys.stderr)
        return None

    def align(features: Tensor, boxes: Tensor, which: Tensor) -> Tensor:
        rois = torch.cat([which[:, None].to(boxes.dtype), boxes], dim=1)
        return ops.roi_align(features, rois, OUTPUT, SCALE, SAMPLING, aligned=True)

    return align


def fastest(align: Align, features: Tensor, boxes: Tensor, which: Tensor, repeat: int) -> float:
    """Seconds of one call and its gradient."""
    best = float("inf")
    for _ in range(min(repeat, 2) if align is loop else repeat):
        _wait(features)
        began = time.perf_counter()
        torch.autograd.grad(align(features, boxes, which).square().sum(), features)
        _wait(features)
        best = min(best, time.perf_counter() - began)
    return best


def _wait(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
