"""A video as one vector of length 1: what a trained model makes of its excerpts, or CLIP of its pictures, averaged."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch.nn import functional

from fedreel.data.clip_model import ClipImages, ClipText
from fedreel.data.clip_picture import read_picture
from fedreel.data.feature_networks import fingerprint, load_embedding
from fedreel.data.hugging_face import read_scale
from fedreel.data.shards import spaced
from fedreel.errors import RecipeError, RunError, nearest
from fedreel.machine.device import pick_device
from fedreel.media.excerpts import EXCERPTS, Excerpts, clips_of, excerpts
from fedreel.tasks.use.trust import Trust, read_trust
from fedreel.tasks.vision.named import NamedClasses

Pooling = Literal["mean", "grid"]
POOLINGS: tuple[Pooling, ...] = ("mean", "grid")


class Looks(Protocol):
    """What makes vectors of videos. `state` differs where vectors could not be compared."""

    state: dict[str, Any]

    def look(self, video: Path) -> Excerpts:
        """What of a video the network sees. Several threads may look at once."""

    def vector(self, seen: Excerpts) -> np.ndarray:
        """float32 (D,) of length 1, or 0 where the network gives nothing but zeros."""


class Embedder:
    """The model of a run whose task says what vector a clip is. `state` differs where vectors could not be compared."""

    def __init__(self, run: Path, client: str = "", pooling: str = "mean", device: str = "cpu") -> None:
        self.pooling = _pooling(pooling)
        self.device = pick_device(device)
        loaded, self.task = load_embedding(run, client, str(self.device))
        self.model = loaded.model
        self.record = read_trust(run, loaded, client)
        weights = fingerprint(self.model.state_dict(), f"{self.task}")
        self.state = {"weights": weights, "pooling": self.pooling, "excerpts": EXCERPTS}

    def look(self, video: Path) -> Excerpts:
        """What of a video the network sees. Several threads may look at once."""
        return excerpts(video, self.task.frames, self.task.side)

    def trust(self, video: Path) -> Trust:
        """How far what is found is to be trusted: by the model's test, and by what the clip looks like."""
        if self.record.space is None:
            return self.record.trust
        frames, side = self.task.frames, self.task.side
        seen = clips_of(video, lambda n: spaced(n, frames)[None], side) if self.task.spaced else self.look(video)
        with torch.inference_mode():
            looks = self.task.look(self.model, torch.from_numpy(seen.clips).to(self.device))
        return self.record.trust if looks is None else self.record.of(looks)

    def vector(self, seen: Excerpts) -> np.ndarray:
        """float32 (D,) of length 1, or 0 where the network gives nothing but zeros. A video is a batch of its own, so
        that the same video gives the same vector, whatever was looked at before."""
        with torch.inference_mode():
            clips = torch.from_numpy(seen.clips).to(self.device)
            mean = self.task.embed(self.model, clips, self.pooling).double().mean(0).cpu().numpy()
        return _of_length_1(mean)


class ClassEmbedder:
    """A run's classifier, by the names of its classes: of a video what its excerpts show, and sentences."""

    def __init__(self, run: Path, client: str = "", pooling: str = "mean", device: str = "cpu") -> None:
        if _pooling(pooling) != "mean":
            raise RecipeError("classes have no places", where="pooling", expected="mean", found=pooling)
        self.device = pick_device(device)
        self.loaded, self.task = load_embedding(run, client, str(self.device))
        self.classes = NamedClasses(self.loaded, run)
        weights = fingerprint(self.loaded.model.state_dict(), f"{self.task} {self.classes.names}")
        self.state = {"weights": weights, "pooling": f"classes {self.classes.fingerprint}", "excerpts": EXCERPTS}

    def look(self, video: Path) -> Excerpts:
        return excerpts(video, self.task.frames, self.task.side)

    def vector(self, seen: Excerpts) -> np.ndarray:
        with torch.inference_mode():
            clips = torch.from_numpy(seen.clips).to(self.device)
            logits = self.loaded.task.forward(self.loaded.model, (clips,)).logits
        return _of_length_1(self.classes.seen(logits).astype(np.float64).mean(0))

    def sentence(self, text: str) -> np.ndarray:
        return self.classes.sentence(text)


class ClipEmbedder:
    """A CLIP in the format of `transformers`: of a video, pictures evenly spaced over it; and sentences."""

    def __init__(self, folder: Path, pooling: str = "mean", device: str = "cpu") -> None:
        if _pooling(pooling) != "mean":
            raise RecipeError("CLIP gives a picture one vector", where="pooling", expected="mean", found=pooling)
        self.folder, self.device = folder, pick_device(device)
        self.tower, self.scale = ClipImages(folder).to(self.device), read_scale(folder)
        self.picture = read_picture(folder, self.tower.size)
        weights = fingerprint(self.tower.state_dict(), f"clip {self.scale} {self.picture}")
        self.state = {"weights": weights, "pooling": "mean", "excerpts": EXCERPTS}

    def look(self, video: Path) -> Excerpts:
        return excerpts(video, 1, self.tower.size, self.picture)

    def vector(self, seen: Excerpts) -> np.ndarray:
        with torch.inference_mode():
            pictures = torch.from_numpy(seen.clips[:, 0]).to(self.device).permute(0, 3, 1, 2).float() / 255
            mean, std = (torch.tensor(three, device=self.device)[:, None, None] for three in astuple(self.scale))
            found = functional.normalize(self.tower((pictures - mean) / std).double(), dim=1).mean(0)
        return _of_length_1(found.cpu().numpy())

    def sentence(self, text: str) -> np.ndarray:
        """The vector of a sentence, to be compared with those of videos."""
        return _of_length_1(ClipText(self.folder, self.device)([text])[0].astype(np.float64))


def _of_length_1(vector: np.ndarray) -> np.ndarray:
    if not np.isfinite(vector).all():
        raise RunError("the model gives no finite numbers", hint="its training diverged: try a lower train.lr")
    return (vector / (np.linalg.norm(vector) or 1.0)).astype(np.float32)


def _pooling(given: str) -> Pooling:
    for known in POOLINGS:
        if given == known:
            return known
    raise RecipeError(f"there is no pooling '{given}'", where="pooling", hint=nearest(given, POOLINGS))
