"""Small data sets of moving skeletons, and runs of seconds on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedreel.config import make_recipe
from fedreel.runs.run import run
from fedreel.tasks.skeleton.joints import KINECT_V1

LEFT, RIGHT = ("wave", "kick", "bow <low>"), ("sit", "run")
BACKBONE = {"name": "stgcn", "width": 4, "features": 8, "topology": "both"}
TASK = {"name": "skeleton", "backbone": BACKBONE, "joints": "kinect-v1", "classes": 3}
TASK |= {"length": 12, "bodies": 1, "augmentation": "none"}


def motion(label: int, frames: int = 15, start: float = 0.0) -> np.ndarray:
    """(T, 20, 3): a body of which the class says what swings, a metre to the side of the sensor and 3 m before it."""
    at = np.random.default_rng(5).normal(0, 0.4, (20, 3)) + np.array([1.0, 2.0, 3.0])
    out = np.repeat(at[None], frames, axis=0)
    out[:, 5 + 4 * label, 1] += 0.3 * np.sin(np.arange(frames) / 2 + start)
    return out.astype(np.float32)


def write_set(path: Path, motions: list[np.ndarray], classes: tuple[str, ...], **more: Any) -> Path:
    """One .npz file; sequences are called m0, m1, ..., and their labels go round."""
    total = len(motions)
    arrays = {
        "data": np.concatenate(motions),
        "lengths": np.array([len(m) for m in motions]),
        "labels": np.arange(total) % len(classes),
        "class_names": np.array(classes),
        "subjects": np.arange(total) // len(classes) + 1,
        "names": np.array([f"m{i}" for i in range(total)]),
        "joint_names": np.array(KINECT_V1.names),
    }
    np.savez(path, **{**arrays, **more})
    return path


def one(path: Path, frames: np.ndarray, **more: Any) -> Path:
    """A file with a single recording."""
    return write_set(path, [frames], ("?",), **more)


def train(
    folder: Path, source: Path, method: str = "fsar", rounds: Any = None, settings: Any = None, **task: Any
) -> Path:
    table = {
        "task": TASK | task,
        "method": {"name": method},
        "data": {"source": str(source)},
        "train": {"batch_size": 4, "lr": 0.05},
        "round": {"rounds": 2} | (rounds or {}),
        "device": "cpu",
        **(settings or {}),
    }
    return run(make_recipe(table), folder, quiet=True).path


def make_sets(folder: Path) -> Path:
    """Two data sets with classes of their own."""
    for name, classes in (("left", LEFT), ("right", RIGHT)):
        motions = [motion(i % len(classes), 10 + i, i) for i in range(4 * len(classes))]
        write_set(folder / f"{name}.npz", motions, classes)
    return folder
