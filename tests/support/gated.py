"""A run on worker processes whose clients wait until a file appears: to be killed in the midst of a round."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.client import Client
from fedreel.runs.run import run
from support.toy import HeadStays, Toy

OPEN = "open"


@dataclass(frozen=True)
class Gated(HeadStays):
    """From round 2 on a client says that it is there, and waits for the gate to open."""

    folder: str = ""

    def local_training(self, client: Client) -> None:
        if self.folder and client.round > 1:
            (Path(self.folder) / f"{client.name} is here").touch()
            while not (Path(self.folder) / OPEN).exists():
                time.sleep(0.01)
        super().local_training(client)


def work(out: Path, engine: dict[str, object], folder: str = "", resume: bool = False) -> None:
    """Three rounds of all clients, whose heads and momentum stay."""
    torch.set_num_threads(1)
    recipe = Recipe(
        system="toy",
        device="cpu",
        task={"name": "toy"},
        method={"name": "gated"},
        engine=engine,
        train=TrainConfig(batch_size=4, lr=0.1, momentum=0.9, keep_optimizer=True),
        round=RoundConfig(rounds=3, evaluate_every=3),
    )
    run(recipe, out, resume=resume, quiet=True, task=Toy(), method=Gated(folder=folder))


def started(out: Path, engine: dict[str, object], folder: str) -> None:
    """In a process of its own, where Ctrl-C is as on a terminal."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work(out, engine, folder)
