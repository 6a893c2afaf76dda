"""Clips by a network for images: every frame is seen alone, what comes of time is left to the head."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.config import check_ranges
from fedreel.data.input_scale import InputScale
from fedreel.errors import RecipeError
from fedreel.models.backbone import Backbone, BackboneConfig, Clips, Images
from fedreel.models.efficientnet import EfficientNetLite0Config
from fedreel.registry import BACKBONES

AT_ONCE = 4  # frames on a CPU, where nothing is learned: the maps of more do not stay in its cache


@dataclass(frozen=True)
class FramesConfig(BackboneConfig):
    """`image` is any backbone that takes images, with its own settings ([task.backbone.image]). Of each frame it gives
    one vector or, with a `grid` of 2 or more, one for every cell of a grid over its map."""

    takes: ClassVar = "clips"

    image: BackboneConfig = field(default_factory=EfficientNetLite0Config)
    grid: int = 1  # cells on each side

    def __post_init__(self) -> None:
        check_ranges(self, "task.backbone", grid=(1, math.inf))
        if self.image.takes != "images":
            known = [name for name in BACKBONES.names() if getattr(BACKBONES.lookup(name), "takes", "") == "images"]
            raise RecipeError(
                f"frames are images, and the backbone {BACKBONES.name_of(type(self.image))} takes {self.image.takes}",
                where="[task.backbone.image] name",
                expected=" or ".join(known),
            )
        if self.image.tune != "all":
            raise RecipeError(
                "what of a backbone is trained is said once, for all of it",
                where="[task.backbone.image] tune",
                expected=f"task.backbone.tune = {self.image.tune}",
            )

    @property
    def input_scale(self) -> InputScale:
        return self.image.input_scale

    @property
    def elsewhere(self) -> str:
        return self.image.elsewhere

    def network(self, sample: Clips) -> Frames:
        return Frames(self.image.network(Images(sample.size)), self.grid)


class Frames(Backbone):
    """Clips (N, 3, T, H, W) to a map (N, C, T, grid, grid) by `features`. With a grid of 1 the image network pools a
    frame in its own way."""

    def __init__(self, image: Backbone, grid: int) -> None:
        super().__init__()
        self.image, self.grid = image, grid
        self.out_channels, self.places = image.out_channels, grid**2

    def features(self, x: Tensor) -> Tensor:
        frames = x.transpose(1, 2).flatten(0, 1)
        few = AT_ONCE if not (torch.is_grad_enabled() or x.is_cuda) else len(frames)
        cells = torch.cat([self._seen(part) for part in frames.split(few)])
        return cells.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2).unflatten(3, (self.grid, self.grid))

    def _seen(self, frames: Tensor) -> Tensor:
        return self.image(frames)[..., None] if self.grid == 1 else self._cells(self.image.features(frames))

    def _cells(self, maps: Tensor) -> Tensor:
        if maps.ndim != 4:
            raise RecipeError(
                "this image backbone gives no map that a grid could be laid over",
                where="[task.backbone] grid",
                expected="1",
                found=f"{self.grid}, and features of shape {tuple(maps.shape)}",
            )
        return F.adaptive_avg_pool2d(maps, self.grid).flatten(2)
