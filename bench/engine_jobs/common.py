"""What every contender of the engine benchmark shares: the job, the models, the command line and the result file."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

USERS, IMAGES, CLASSES = 1000, 50, 10
CLIENTS_PER_ROUND, BATCH, LEARNING_RATE = 50, 10, 0.1
NOBODY = -1  # where a cohort is smaller than others
WARM_UP = 1  # rounds run but not timed: process start, lazy initialisation, Ray's actors


@dataclass(frozen=True)
class Job:
    images: Tensor  # users x images x 3 x 32 x 32
    labels: Tensor  # users x images
    cohorts: list[list[int]]  # the users of every round, in order; the first WARM_UP rounds are not timed


OPTIONS: dict[str, dict[str, Any]] = {  # of single contenders
    "--actor-per-core": {"action": "store_true"},
    "--engine": {"default": "local"},
    "--workers": {"type": int, "default": 0, "help": "of the engine processes; 0: one a core"},
    "--device": {"default": "cpu"},
    "--counts": {"default": "1", "help": "of bare processes, in turn: N,N"},
}


def parse_arguments(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for option in options:
        parser.add_argument(option, **OPTIONS[option])
    parser.add_argument("--model", choices=["linear", "cnn"], required=True)
    parser.add_argument("--rounds", type=int, default=1, help="timed rounds; one more is run first")
    parser.add_argument("--data", required=True, help="the .npz file that make_data wrote")
    parser.add_argument("--out", required=True, help="result file (JSON; the weights go beside it as .npy)")
    parser.add_argument("--threads", type=int, default=2, help="cores to use")
    return parser.parse_args()


def set_up(threads: int) -> None:
    """Every contender computes with the same kernels: on 64-bit ARM without oneDNN, which slows all of them down and
    would hide what the engines cost (bench/backend.py)."""
    torch.set_num_threads(threads)
    if platform.machine() in ("aarch64", "arm64"):
        torch.backends.mkldnn.enabled = False


def make_data(path: Path, rounds: int, seed: int = 0, clients: int = CLIENTS_PER_ROUND, warm_up: int = 0) -> None:
    """Write the seeded images (a coarse class pattern under noise), labels and cohorts that all contenders read. Rounds
    that are not timed may have fewer clients, `warm_up`."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, (USERS, IMAGES))
    patterns = rng.integers(0, 128, (CLASSES, 3, 4, 4), dtype=np.uint8).repeat(8, axis=2).repeat(8, axis=3)
    images = rng.integers(0, 128, (USERS, IMAGES, 3, 32, 32), dtype=np.uint8) + patterns[labels]
    cohorts = [rng.choice(USERS, clients, replace=False) for _ in range(WARM_UP + rounds)]
    for cohort in cohorts[:WARM_UP]:
        cohort[warm_up or clients :] = NOBODY
    np.savez(path, images=images, labels=labels, cohorts=np.stack(cohorts))


def load_job(path: str, rounds: int) -> Job:
    with np.load(path, allow_pickle=False) as file:
        # Inputs in [-0.5, 0.5) keep SGD at rate 0.1 stable, so that the weights of two contenders can be compared.
        cohorts = [[u for u in cohort if u != NOBODY] for cohort in file["cohorts"][: WARM_UP + rounds].tolist()]
        images = torch.from_numpy(file["images"]).float().sub_(128).div_(256)
        return Job(images, torch.from_numpy(file["labels"]), cohorts)


def build_model(name: str) -> nn.Sequential:
    """Seeded, so equal in every process: 30.7k parameters (linear) or 1.63M (pfl-research's CNN without dropout)."""
    torch.manual_seed(0)
    if name == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, CLASSES))
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    )


def flat_weights(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def write_result(
    arguments: argparse.Namespace, job: Job, ticks: Sequence[float], model: nn.Module, **beside: float
) -> None:
    """Store the timed rounds, given `ticks` (the clock before the first and after every round), and the final model."""
    expected = WARM_UP + arguments.rounds + 1
    if len(ticks) != expected:
        raise ValueError(f"{expected} ticks expected for {arguments.rounds} timed rounds, found {len(ticks)}")
    weights = flat_weights(model)
    with torch.no_grad():  # on the first 20 users, the same for all contenders
        loss = functional.cross_entropy(model(job.images[:20].flatten(0, 1)), job.labels[:20].flatten())
    result: dict[str, Any] = {
        "seconds_per_round": np.diff(ticks)[WARM_UP:].tolist(),
        "clients_per_round": len(job.cohorts[-1]),
        "checksum": float(weights.astype(np.float64) @ np.cos(np.arange(weights.size))),
        "final_loss": float(loss),
        **beside,
    }
    np.save(Path(arguments.out).with_suffix(".npy"), weights)
    Path(arguments.out).write_text(json.dumps(result))
