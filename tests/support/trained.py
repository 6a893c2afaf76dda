"""Fixtures: a video of six scenes, and a run of one round whose models summarise."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fedreel.config import make_recipe
from fedreel.runs.run import run
from support import annotated
from support.films import FPS, film, scenes


@pytest.fixture(scope="session")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return film(tmp_path_factory.mktemp("video") / "holiday.mp4", scenes(), fps=FPS, options={"g": "20"})


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one round with two communities. Tests that change it take a copy."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    names = [(f"o{i}", f"v{i}{k}") for i in range(4) for k in range(2)]
    content = {name: annotated.keys(n, shots=3 + 3 * (n // 4), width=64) for n, (_, name) in enumerate(names)}
    attrs = {n: {"owner": o, "category": o, "split": "test" if n.endswith("1") else "train"} for o, n in names}
    data = annotated.write(folder / "a.h5", content, attrs)
    table = {
        "task": {"name": "summary", "width": 8, "hidden": 8, "blocks": 1, "fps": 2.0},
        "method": {"name": "cfedvs", "groups": 2, "share": "none", "normalize": "path"},
        "data": {"source": str(data), "public": str(data)},
        "train": {"batch_size": 1, "lr": 0.05, "optimizer": "adam"},
        "round": {"rounds": 1},
        "device": "cpu",
    }
    run(make_recipe(table), folder / "run", quiet=True)
    return folder / "run"


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained / "model", tmp_path / "copy"))
