"""Networks as frame features: a published image model, the backbone of a finished run, or any module of a user."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedreel.data.clip_model import ClipImages
from fedreel.data.clip_picture import read_picture
from fedreel.data.feature_card import Features, card_of
from fedreel.data.hugging_face import find_folder, read_scale
from fedreel.data.input_scale import IMAGENET, LITE
from fedreel.errors import RunError, nearest
from fedreel.media.video import middle_square
from fedreel.zoo import HERE, find_model

if TYPE_CHECKING:
    from fedreel.core.abilities import Embeds
    from fedreel.runs.run import Loaded


class ModuleFeatures:
    """Any torch module as features: normalised images (n, 3, h, w) in, or clips (n, 3, frames, h, w) if it wants more
    than one frame a step; vectors (n, width) out."""

    def __init__(
        self,
        module: nn.Module,
        width: int,
        *,
        name: str = "module",
        size: tuple[int, int] = (224, 224),
        frames: int = 1,
        mean: Sequence[float] = IMAGENET.mean,
        std: Sequence[float] = IMAGENET.std,
        picture: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.module = module.eval().requires_grad_(False)
        self.name, self.width, self.size, self.frames = name, width, size, frames
        self.mean, self.std, self.picture = tuple(mean), tuple(std), picture
        self._scale = {key: [round(float(v), 6) for v in getattr(self, key)] for key in ("mean", "std")}
        words = f"{[*self._scale['mean'], *self._scale['std']]}" + (f" {picture}" if picture else "")
        self._weights = fingerprint(self.module.state_dict(), words)

    def __call__(self, windows: np.ndarray) -> np.ndarray:
        clips = torch.from_numpy(windows).permute(0, 4, 1, 2, 3).float() / 255
        mean, std = (torch.tensor(v)[:, None, None, None] for v in (self.mean, self.std))
        clips = (clips - mean) / std
        with torch.inference_mode():
            return self.module(clips[:, :, 0] if self.frames == 1 else clips).float().numpy()

    def card(self) -> dict[str, Any]:
        """With the scale of its input: on another scale the same weights give other vectors."""
        return card_of(self, weights=self._weights) | self._scale


class RunFeatures:
    """What the model of a run makes of clips, if its task says what vector a clip is: the mean of its last map. The
    clip of a step is as many of its frames as the task takes, evenly spaced, and as in training the square in the
    middle of each."""

    picture = staticmethod(middle_square)

    def __init__(self, folder: Path) -> None:
        loaded, self.task = load_embedding(folder)
        self.model = loaded.model
        self.name, self.frames, self.decoded = f"run:{folder}", self.task.frames, self.task.side
        self.size = (self.decoded, self.decoded)
        self.width = self(np.zeros((1, self.frames, *self.size, 3), np.uint8)).shape[1]
        self._weights = fingerprint(self.model.state_dict(), f"{self.task}, the middle")

    def __call__(self, windows: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.task.embed(self.model, torch.from_numpy(windows)).numpy()

    def card(self) -> dict[str, Any]:
        return card_of(self, kind="run", weights=self._weights)  # the same model in another folder is the same


def run_features(folder: Path) -> Features:
    return RunFeatures(folder)


def clip_features(name: str) -> Features:
    """CLIP's image tower, by a folder in the format of `transformers` or a name on the hub: vectors in the space that
    it shares with the text tower's, of length 1. Frames are prepared as its preprocessor does it: the square in their
    middle."""
    folder = find_folder(name)
    tower, scale = ClipImages(folder), read_scale(folder)
    picture = read_picture(folder, tower.size)
    unit = nn.Sequential(tower, _Unit())
    size = (tower.size, tower.size)
    return ModuleFeatures(unit, tower.width, name="clip", size=size, mean=scale.mean, std=scale.std, picture=picture)


def load_embedding(run: Path, client: str = "", device: str = "cpu") -> tuple[Loaded, Embeds]:
    """The model of a run and its task, if that one says what vector a clip is; see `own_model` for the client."""
    from fedreel.core.abilities import Embeds
    from fedreel.registry import TASKS
    from fedreel.runs.run import load

    run = find_model(run)
    loaded = load(run, device=device)
    if not isinstance(loaded.task, Embeds):
        able = [name for name in TASKS.names() if issubclass(TASKS.lookup(name), Embeds)]
        raise RunError(
            "this run's model does not turn video clips into vectors",
            where=str(run),
            expected=f"a run of the task {' or '.join(able)}",
            found=str(loaded.card.get("task")),
        )
    return own_model(loaded, run, client, device), loaded.task


def own_model(loaded: Loaded, run: Path, client: str = "", device: str = "cpu") -> Loaded:
    """A run's model with a backbone that is trained in all its parts: everybody's or, where parts of it stay with the
    clients or communities have their own, that of a client."""
    from fedreel.core.server import GLOBAL
    from fedreel.core.state import PrivateStore
    from fedreel.runs.run import load

    run = run.parent if run.name == "model" and (run / "card.json").is_file() else run
    kept = [name for name in loaded.card["private"] if name.startswith("backbone.")]
    groups: dict[str, str] = loaded.card.get("communities", {})
    if kept and not client:
        known = PrivateStore(run / "clients").clients()
        raise RunError(
            "part of this model's backbone never left the clients; each has its own",
            where=str(run),
            expected="a model that all clients share, or the name of a client: --client NAME",
            found=f"clients {', '.join(known)}" if known else "no clients' parts in the run's folder",
        )
    if not client:
        return loaded
    if not loaded.card["private"] and client not in groups:
        found = f"client '{client}'; {nearest(client, groups) if groups else 'all clients share one model'}"
        raise RunError("this run has no model of that client's own", where=str(run), found=found)
    return load(run, model=groups.get(client, GLOBAL), client=client, device=device)


def efficientnet_lite0() -> Features:
    """1280 numbers: EfficientNet-Lite0's last maps on an image of 224 pixels, averaged. The weights are those of the
    model `imagenet`, which comes with fedreel."""
    loaded, _ = load_embedding(HERE / "imagenet")
    net = loaded.model.get_submodule("backbone.image")
    return ModuleFeatures(net, 1280, name="efficientnet-lite0", mean=LITE.mean, std=LITE.std)


class _Unit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=1)


def fingerprint(tensors: Mapping[str, Tensor], extra: str = "") -> str:
    """A short text that differs where names, shapes or values do."""
    digest = hashlib.sha256(extra.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
