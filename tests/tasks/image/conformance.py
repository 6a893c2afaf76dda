"""Small data of the task for engine conformance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

RESNET = {"name": "resnet10", "width": 2, "small_stem": True}


def settings(folder: Path) -> dict[str, Any]:
    return {"classes": 3, "backbone": RESNET, "size": 16, "embedding": 4}


def write(folder: Path, clients: tuple[str, ...]) -> None:
    """Three pictures of each class for training, one for testing."""
    for client in clients:
        for kind in range(3):
            for nth in range(4):
                path = folder / client / ("test" if nth == 3 else "train") / f"class{kind}" / f"{nth}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                rng = np.random.default_rng([ord(client[-1]), kind, nth])
                Image.fromarray(rng.integers(80 * kind, 80 * kind + 90, (16, 16, 3), dtype=np.uint8)).save(path)
