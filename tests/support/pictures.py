"""Folders of small pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def pictures(root: Path, owners: int = 2, each: int = 6) -> Path:
    """OWNER/{train,test}/CLASS/*.png: dark ones and light ones."""
    for owner in range(owners):
        for kind in range(2):
            for nth in range(each):
                folder = root / f"owner{owner}" / ("test" if nth == 0 else "train") / f"class{kind}"
                folder.mkdir(parents=True, exist_ok=True)
                rng = np.random.default_rng([owner, kind, nth])
                pixels = rng.integers(120 * kind, 120 * kind + 130, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{nth}.png")
    return root
