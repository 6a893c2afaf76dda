"""What networks over moving skeletons share: how bodies enter, three blocks that can be run apart, the features."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.config import check_ranges
from fedreel.errors import RecipeError
from fedreel.fields import ModelName
from fedreel.machine.device import channels_together
from fedreel.models.backbone import Backbone, BackboneConfig, Published
from fedreel.tasks.skeleton.graph import Bones
from fedreel.tasks.skeleton.topology import Kind, Topology

BLOCKS = 3  # by depth and feature size: each lasts until time is halved, or the end

FSARS = r"^(topologies|neck)\."  # tensors that FSAR adds to a network


@dataclass(frozen=True)
class Skeleton:
    """The joints of a body as a graph."""

    joints: int
    bones: Bones
    centre: int


@dataclass(frozen=True)
class SkeletonConfig(BackboneConfig):
    """What all graph networks can be set to. Each makes a `SkeletonBackbone`."""

    takes: ClassVar = "skeletons"
    shares: ClassVar[tuple[int, int]] = (1, 1)  # width and features are multiples of these: branches share them

    width: int = 16  # of the first layers
    features: int = 0  # of the last one; 0: four times the width
    neck: int = 0  # > 0: a further layer makes so many features of them
    dropout: float = 0.0
    topology: Kind = "graph"
    per_layer: bool = False  # a topology for each layer instead of one for all
    init: ModelName = (
        ""  # a file of weights: fedreel's, of ST-GCN's authors or pyskl's where the network is stgcn; empty: random
    )

    def __post_init__(self) -> None:
        check_ranges(self, "task.backbone", width=(1, math.inf), features=(0, math.inf), neck=(0, math.inf))
        check_ranges(self, "task.backbone", dropout=(0, 1))
        for name, value, share in zip(("width", "features"), (self.width, self.channels), self.shares):
            if value % share:
                below = max(value // share, 1) * share
                raise RecipeError(
                    "the branches of a layer cannot share its channels evenly",
                    where=f"[task.backbone] {name}",
                    expected=f"a multiple of {share}, such as {below} or {below + share}",
                    found=str(value),
                )

    @property
    def channels(self) -> int:
        """Of the last layer."""
        return self.features or 4 * self.width


class SkeletonBackbone(Backbone):
    """(N, 3, T, V, M) in, features (N, C) out, in three steps: `enter`, blocks 0 to 2, `leave`. What lies between two
    blocks is (N * M, C, T, V), channels last in memory: twice as fast on CPUs. Files of weights need have no topology
    but the skeleton's own, and no neck."""

    published: Published = Published(
        optional=FSARS,
        hint="take the file of the same network, or set width, features and task.joints to those of the file",
    )

    def __init__(self, config: SkeletonConfig, skeleton: Skeleton) -> None:
        super().__init__()
        self.data_bn = nn.BatchNorm1d(3 * skeleton.joints)
        channels, neck = config.channels, config.neck
        layers = (nn.Linear(channels, neck), nn.BatchNorm1d(neck), nn.Dropout(0.5)) if neck else ()
        self.neck = nn.Sequential(*layers)
        self.out_channels = neck or channels

    @abstractmethod
    def block(self, number: int, h: Tensor) -> Tensor: ...

    def enter(self, x: Tensor) -> Tensor:
        """Bodies side by side in the batch, every coordinate of every joint normalised."""
        n, c, t, v, m = x.shape
        h = x.permute(0, 4, 3, 1, 2).reshape(n * m, v * c, t)
        return channels_together(self.data_bn(h).view(n * m, v, c, t).permute(0, 2, 3, 1))

    def leave(self, h: Tensor, bodies: int) -> Tensor:
        """Means over time and joints, then over bodies."""
        return self.neck(h.mean(dim=(2, 3)).view(-1, bodies, h.shape[1]).mean(dim=1))

    def features(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for number in range(BLOCKS):
            h = self.block(number, h)
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.features(x), x.shape[4])


class Topologies(nn.ModuleList):
    """The matrices of a network's layers: one Topology for all of them, or one for each."""

    def __init__(self, graph: Tensor, kind: Kind, layers: int, per_layer: bool) -> None:
        super().__init__(Topology(graph, kind) for _ in range(layers if per_layer else 1))

    def matrix(self, layer: int) -> Tensor:
        return self[layer if len(self) > 1 else 0]()

    def matrices(self, layers: range) -> list[Tensor]:
        """Of several layers; one that all share is made once."""
        return [self[i]() for i in layers] if len(self) > 1 else [self[0]()] * len(layers)


class Pointwise(nn.Conv2d):
    """A 1 x 1 convolution, with a stride in time. As a product over channels it trains twice as fast on CPUs."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__(channels, out, 1, (stride, 1))

    def forward(self, x: Tensor) -> Tensor:
        taken = x[:, :, :: self.stride[0]].permute(0, 2, 3, 1)
        return F.linear(taken, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def spread(maps: Tensor, matrices: Tensor) -> Tensor:
    """Move K feature maps, the channels of (N, K * C, T, V), along their matrices (K, V, W) and add them up:
    (N, C, T, W)."""
    return spread_by_frame(maps, matrices) if maps.is_cuda else spread_at_once(maps, matrices)


def spread_at_once(maps: Tensor, matrices: Tensor) -> Tensor:
    """For CPUs, by one large product: many small ones, as a product of batches would make without gradients, are
    slow there."""
    n, _, t, v = maps.shape
    k, _, w = matrices.shape
    rows = maps.permute(0, 2, 3, 1).reshape(n, t, v * k, -1).transpose(2, 3)
    moved = rows.reshape(-1, v * k) @ matrices.transpose(0, 1).reshape(v * k, w)
    return moved.view(n, t, -1, w).permute(0, 2, 1, 3)


def spread_by_frame(maps: Tensor, matrices: Tensor) -> Tensor:
    """For GPUs, by a product for every frame: maps are not copied, and channels come out together in memory, as what
    follows wants them."""
    n, _, t, v = maps.shape
    k, _, w = matrices.shape
    rows = maps.permute(0, 2, 3, 1).reshape(n * t, v * k, -1)
    along = matrices.permute(2, 1, 0).reshape(w, v * k).expand(n * t, -1, -1)
    return torch.bmm(along, rows).view(n, t, w, -1).permute(0, 3, 1, 2)
