"""A tiny run of the task recognition, small videos to search in, and runs made over; for tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from fedreel.config import load_recipe, make_recipe
from fedreel.core.job import make_task
from fedreel.media.video import write
from fedreel.runs.run import run
from support.tiny import SETTINGS


def train(out: Path, data: Path, **settings: Any) -> Path:
    """A run of one round; clips are 4 frames of 16 pixels."""
    torch.set_num_threads(1)
    run(
        load_recipe("recognition", {**SETTINGS, "data.source": str(data), "round.rounds": 1, **settings}),
        out,
        quiet=True,
    )
    return out


def moving(seed: int, length: int = 14) -> np.ndarray:
    """Frames of 16 x 24 pixels: a bar of its own colour, width and speed on a ground of its own."""
    rng = np.random.default_rng(seed)
    frames = np.empty((length, 16, 24, 3), np.uint8)
    frames[:] = rng.integers(0, 256, 3)
    colour, wide, speed = rng.integers(0, 256, 3), rng.integers(3, 9), rng.integers(1, 5)
    for t, frame in enumerate(frames):
        at = speed * t % (24 - wide)
        frame[4 * (seed % 3) :, at : at + wide] = colour
    return frames


def make_films(folder: Path, count: int = 5) -> Path:
    """clip0.mp4 ... of 14, 15 ... frames."""
    for n in range(count):
        write(folder / f"clip{n}.mp4", moving(n, 14 + n), 8)
    return folder


def other_task(trained: Path, out: Path, name: str) -> Path:
    """A copy of a run with a fresh model of another task in it."""
    shutil.copytree(trained, out)
    classes = {"classes": 2} if name in ("skeleton", "image", "recognition") else {}
    table = {"task": {"name": name, **classes}, "method": {"name": "fedavg"}}
    state = make_task(make_recipe(table)).model().state_dict()
    save_file(dict(state), out / "model" / "global.safetensors")
    card = json.loads((out / "model" / "card.json").read_text())
    card |= {"task": name, "recipe": table, "travelling": [*state], "private": []}
    (out / "model" / "card.json").write_text(json.dumps(card))
    return out


def shifted(run: Path) -> None:
    """Change a weight of a run's backbone a little."""
    file = run / "model" / "global.safetensors"
    tensors = load_file(file)
    tensors["backbone.stem.0.weight"] += 0.1
    save_file(tensors, file)
