"""Writers of the public forms of moment annotations, and small sets of queries with features."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.tasks.moments.annotations import Query
from fedreel.tasks.moments.features import MomentFeatures, open_features


def table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def lengths(folder: Path, **seconds: float) -> Path:
    return table(folder / "videos.csv", [{"id": video, "length": length} for video, length in seconds.items()])


def jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def queries(groups: Mapping[str, int], each: int = 2, marks: Mapping[str, str] | None = None) -> list[Query]:
    """So many videos of every group, with `each` sentences about each of them."""
    found = []
    for group, count in groups.items():
        for n in range(count):
            video = f"{group}-{n:02d}"
            split = (marks or {}).get(video, "")
            for k in range(each):
                sentence = f"person number {k} of {group} opens door {n}."
                found.append(Query(video, 1.0 + k, 4.0 + 2 * k, sentence, 20.0 + n, group, split))
    return found


def npz(path: Path, rows: Mapping[str, np.ndarray], **other: Any) -> Path:
    offsets = np.cumsum([0, *(len(x) for x in rows.values())])
    np.savez(path, ids=np.array([*rows]), offsets=offsets, features=np.concatenate([*rows.values()]), **other)
    return path


def features(path: Path, videos: Sequence[str], width: int = 3) -> MomentFeatures:
    """Features that begin with the number of their video, in the order of `videos`."""
    rng = np.random.default_rng(0)
    rows = {}
    for n, video in enumerate(dict.fromkeys(videos)):
        rows[video] = rng.normal(size=(5 + n % 7, width)).astype(np.float32)
        rows[video][:, 0] = n
    return open_features(npz(path, rows))
