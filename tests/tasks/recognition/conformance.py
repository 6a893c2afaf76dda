"""Small data of the task for engine conformance."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from support.tiny import videos

R3D = {"name": "r3d", "width": 2, "blocks": [1, 1, 1, 1]}


def settings(folder: Path) -> dict[str, Any]:
    return {"classes": 2, "backbone": R3D, "size": 16, "frames": 4}


def write(folder: Path, clients: tuple[str, ...]) -> None:
    """Eight clips of each client, two of them for testing."""
    videos(folder, owners=[int(client[1:]) for client in clients], clips=4)
    rows = [("path", "label", "owner", "split")]
    for path in sorted(folder.rglob("*.mp4")):
        owner = path.parent.parent.name.replace("owner", "c")
        split = "test" if path.stem == "0" else "train"
        rows.append((str(path.relative_to(folder)), path.parent.name, owner, split))
    with open(folder / "index.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
