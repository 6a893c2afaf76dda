"""How oneDNN compares with PyTorch's own CPU kernels for the small networks that clients train."""

from __future__ import annotations

import json
import platform
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedreel.models.r3d import R3D, R3DConfig

JOBS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear 3072 to 10, batch 10": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), (10, 3, 32, 32)),
    "R3D width 8, 8 clips of 8x32x32": (lambda: R3D(R3DConfig(width=8, blocks=(1, 1, 1, 1))), (8, 3, 8, 32, 32)),
    "R3D width 16, 8 clips of 8x32x32": (lambda: R3D(R3DConfig(width=16, blocks=(1, 1, 1, 1))), (8, 3, 8, 32, 32)),
}


def main() -> None:
    warnings.filterwarnings("ignore", category=UserWarning)  # torch remarks on TF32 when the flag is touched
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}; ms for one training step"
    )
    print(f"{'job':<36}{'oneDNN':>10}{'without':>10}{'ratio':>8}")
    ratios = {}
    for name, (build, shape) in JOBS.items():
        model, x = build(), torch.randn(shape)
        times = {flag: _best(model, x, flag) for flag in (True, False)}
        ratios[name] = times[True] / times[False]
        print(f"{name:<36}{times[True] * 1e3:>10.2f}{times[False] * 1e3:>10.2f}{ratios[name]:>8.2f}")
    print(json.dumps({"machine": platform.machine(), "onednn_over_native": ratios}))


def _best(model: nn.Module, x: Tensor, onednn: bool, repeats: int = 12) -> float:
    torch.backends.mkldnn.enabled = onednn
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        model(x).sum().backward()
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    main()
