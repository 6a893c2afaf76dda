"""Small data of the task for engine conformance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np


def settings(folder: Path) -> dict[str, Any]:
    return {"features": "own", "width_in": 6, "width": 8, "blocks": 1, "hidden": 4, "fps": 2.0}


def write(folder: Path, clients: tuple[str, ...]) -> None:
    """Three annotated videos of each client, the last for testing."""
    folder.mkdir(parents=True)
    with h5py.File(folder / "annotations.h5", "w") as file:
        for client in clients:
            for nth in range(3):
                rng = np.random.default_rng([ord(client[-1]), nth])
                steps = 6 + 2 * nth + ord(client[-1]) % 3
                group = file.create_group(f"{client}-{nth}")
                group["features"] = rng.normal(size=(steps, 6)).astype(np.float32)
                group["gtscore"] = rng.random(steps).astype(np.float32)
                group["picks"] = np.arange(steps) * 15
                group["n_frames"], group["n_steps"], group["fps"] = 15 * steps, steps, 30.0
                group["change_points"] = np.array([[0, 44], [45, 15 * steps - 1]])
                group["n_frame_per_seg"] = np.array([45, 15 * steps - 45])
                group["user_summary"] = (rng.random((3, 15 * steps)) < 0.2).astype(np.uint8)
                group.attrs.update(owner=client, category="any", split="test" if nth == 2 else "train")
