"""Small data of the task for engine conformance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def settings(folder: Path) -> dict[str, Any]:
    """Sites must agree on the words."""
    sizes = {"width_in": 3, "length": 8, "width": 8, "word_width": 4, "vocabulary": 40}
    return {"features": "own", "words": str(folder / "words.txt"), **sizes}


def write(folder: Path, clients: tuple[str, ...]) -> None:
    """Three videos of each client with two sentences about each, and features; the last video is for testing."""
    folder.mkdir(parents=True)
    (folder / "words.txt").write_text("someone\nopens\ndoor\n")
    rows, lines, videos = {}, [], ["id,owner,length,split"]
    for client in clients:
        for nth in range(3):
            rng = np.random.default_rng([ord(client[-1]), nth])
            name = f"{client}v{nth}"
            rows[name] = rng.normal(size=(9 + nth, 3)).astype(np.float32)
            videos.append(f"{name},{client},{9 + nth},{'test' if nth == 2 else 'train'}")
            starts = rng.uniform(0, 5, 2)
            lines += [f"{name} {s:.2f} {s + 3:.2f}##someone opens {w}." for s, w in zip(starts, ("a door", "it"))]
    (folder / "annotations.txt").write_text("\n".join(lines) + "\n")
    (folder / "videos.csv").write_text("\n".join(videos) + "\n")
    offsets = np.cumsum([0, *map(len, rows.values())])
    np.savez(folder / "own.npz", ids=np.array([*rows]), offsets=offsets, features=np.concatenate([*rows.values()]))
