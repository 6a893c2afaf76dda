"""A video as one vector: what a trained model makes of its excerpts, averaged, of length 1."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedreel.data.feature_networks import fingerprint, load_embedding
from fedreel.errors import RecipeError, RunError, nearest
from fedreel.machine.device import pick_device
from fedreel.media.excerpts import EXCERPTS, Excerpts, excerpts

Pooling = Literal["mean", "grid"]
POOLINGS: tuple[Pooling, ...] = ("mean", "grid")


class Embedder:
    """The model of a run whose task says what vector a clip is. `state` differs where vectors could not be compared."""

    def __init__(self, run: Path, client: str = "", pooling: str = "mean", device: str = "cpu") -> None:
        self.pooling = _pooling(pooling)
        self.device = pick_device(device)
        loaded, self.task = load_embedding(run, client, str(self.device))
        self.model = loaded.model
        weights = fingerprint(self.model.state_dict(), f"{self.task}")
        self.state = {"weights": weights, "pooling": self.pooling, "excerpts": EXCERPTS}

    def look(self, video: Path) -> Excerpts:
        """What of a video the network sees. Several threads may look at once."""
        return excerpts(video, self.task.frames, self.task.side)

    def vector(self, seen: Excerpts) -> np.ndarray:
        """float32 (D,) of length 1, or 0 where the network gives nothing but zeros. A video is a batch of its own, so
        that the same video gives the same vector, whatever was looked at before."""
        with torch.inference_mode():
            clips = torch.from_numpy(seen.clips).to(self.device)
            mean = self.task.embed(self.model, clips, self.pooling).double().mean(0).cpu().numpy()
        if not np.isfinite(mean).all():
            raise RunError("the model gives no finite numbers", hint="its training diverged: try a lower train.lr")
        return (mean / (np.linalg.norm(mean) or 1.0)).astype(np.float32)


def _pooling(given: str) -> Pooling:
    for known in POOLINGS:
        if given == known:
            return known
    raise RecipeError(f"there is no pooling '{given}'", where="pooling", hint=nearest(given, POOLINGS))
