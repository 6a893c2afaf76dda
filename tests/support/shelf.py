"""Shards made of arrays, without video files, and a task whose vectors are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor, nn

from fedreel.core.abilities import Embeds
from fedreel.data.shards import Shards
from fedreel.tasks.vision.evaluate.retrieval import LabelledSet, labelled_set


def shelved(folder: Path, clips: Sequence[np.ndarray], labels: Sequence[str], splits: Sequence[str]) -> Shards:
    """Shards of these clips (T, H, W, 3)."""
    folder.mkdir(parents=True)
    entries, offset = [], 0
    for number, (clip, label, split) in enumerate(zip(clips, labels, splits)):
        frames, height, width, _ = clip.shape
        shape = {"frames": frames, "height": height, "width": width}
        place = {"fps": 8.0, "part": 0, "offset": offset, "size": clip.size, **shape}
        entries.append({"path": f"{number}.mp4", "label": label, "owner": "", "split": split, **place})
        offset += clip.size
    (folder / "part-00000.u8").write_bytes(b"".join(clip.astype(np.uint8).tobytes() for clip in clips))
    side = min(clips[0].shape[1:3])
    index = {"version": 2, "side": side, "quality": 0, "clips": entries, "broken": [], "cut": []}
    (folder / "index.json").write_text(json.dumps(index))
    return Shards.open(folder)


def flat(value: int, frames: int = 4, side: int = 2) -> np.ndarray:
    """A clip of one grey."""
    return np.full((frames, side, side, 3), value, np.uint8)


def bars(folder: Path, train: int = 24, test: int = 16) -> LabelledSet:
    """A bright bar that stands upright, or lies, at random places of eight frames of 16 x 16 pixels."""
    rng = np.random.default_rng(0)
    clips, labels = [], []
    for number in range(train + test):
        clip = np.full((8, 16, 16, 3), 30, np.uint8)
        at = int(rng.integers(4, 9))
        clip[(slice(None), slice(None), slice(at, at + 4)) if number % 2 else (slice(None), slice(at, at + 4))] = 220
        clips.append(clip)
        labels.append("upright" if number % 2 else "lying")
    return labelled_set("bars", shelved(folder, clips, labels, ["train"] * train + ["test"] * test))


@dataclass(frozen=True)
class Known(Embeds):
    """A clip's vector is a given function of its first frame's grey, (N,) to (N, D)."""

    vector: Callable[[Tensor], Tensor]
    frames: int = 2

    @property
    def side(self) -> int:
        return 2

    def embed(self, model: nn.Module, clips: Tensor, pooling: Literal["mean", "grid"] = "mean") -> Tensor:
        return self.vector(clips[:, 0, 0, 0, 0].float())
