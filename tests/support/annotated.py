"""Small h5 files of annotated videos in the form of the ECCV 2016 sets, and the same videos in memory, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fedreel.tasks.summary.data import SummaryVideo
from fedreel.tasks.summary.metrics import Truth

STEP = 5


def keys(seed: int, shots: int = 6, width: int = 4, users: int = 3, centred: bool = False) -> dict[str, Any]:
    """What one video's group holds; shots of 4 to 12 frames, a step every 5."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.integers(4, 13, shots))
    starts = np.concatenate([[0], ends[:-1]])
    n = int(ends[-1])
    picks = np.arange(STEP // 2 if centred else 0, n, STEP)
    return {
        "features": rng.normal(size=(len(picks), width)).astype(np.float32),
        "gtscore": rng.random(len(picks)).astype(np.float32),
        "user_summary": rng.integers(0, 2, (users, n)).astype(np.float32),
        "change_points": np.stack([starts, ends - 1], axis=1),
        "n_frame_per_seg": ends - starts,
        "n_frames": n,
        "n_steps": len(picks),
        "picks": picks,
    }


def write(path: Path, videos: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Mapping[str, str]] = {}) -> Path:
    with h5py.File(path, "w") as file:
        for name, content in videos.items():
            group = file.create_group(name)
            for key, value in content.items():
                group[key] = value
            group.attrs.update(attrs.get(name, {}))
    return path


def video(name: str, seed: int, shots: int = 6, *, scores: bool = False, width: int = 4, **known: str) -> SummaryVideo:
    k = keys(seed, shots, width, centred=scores)
    users, steps = len(k["user_summary"]), len(k["picks"])
    given = np.random.default_rng(seed + 1).integers(1, 6, (users, steps)) if scores else None
    spread = "nearest" if scores else "hold"
    truth = Truth(k["n_frames"], k["picks"], k["change_points"], k["user_summary"], given, spread=spread)  # type: ignore[arg-type]
    return SummaryVideo(name, k["features"], k["gtscore"], truth, **{"source": name, **known})  # type: ignore[arg-type]


def owned(owners: Sequence[str], each: int, categories: Sequence[str] = ("a", "b")) -> list[SummaryVideo]:
    """Videos without splits: `each` of every owner, categories in turn."""
    names = [(owner, i) for owner in owners for i in range(each)]
    return [
        video(f"{owner}-{i}", number, owner=owner, category=categories[number % len(categories)])
        for number, (owner, i) in enumerate(names)
    ]
