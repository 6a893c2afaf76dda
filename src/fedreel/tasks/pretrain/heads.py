"""Networks for self-supervised learning: a backbone and the head of a pretext, which reads the backbone's last map."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations

import torch
from torch import Tensor, nn

from fedreel.models.backbone import Backbone
from fedreel.models.r3d import R3D


class PretextNetwork(nn.Module):
    """Methods tell its two parts apart by the names, `backbone.*` and `head.*`."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head


class SpeedHead(nn.Module):
    """The mean of a map (N, C, T, H, W) over time and space, dropout, a linear layer."""

    def __init__(self, channels: int, classes: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(channels, classes)
        nn.init.normal_(self.fc.weight, std=0.001)
        nn.init.zeros_(self.fc.bias)

    def forward(self, maps: Tensor) -> Tensor:
        return self.fc(self.dropout(maps.flatten(2).mean(2)))


class OrderHead(nn.Module):
    """VCOP (Xu et al. 2019): every two of a sample's clips through one shared layer, all of that through another. The
    maps (N * clips, C, T, H, W) are those of one sample after the other."""

    def __init__(self, channels: int, clips: int, classes: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.clips = clips
        self.pairs = tuple(combinations(range(clips), 2))
        self.pair = nn.Sequential(nn.Linear(2 * channels, channels), nn.ReLU(inplace=True))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(len(self.pairs) * channels, classes)

    def forward(self, maps: Tensor) -> Tensor:
        pooled = maps.flatten(2).mean(2).unflatten(0, (-1, self.clips))
        pairs = [self.pair(torch.cat([pooled[:, i], pooled[:, j]], dim=1)) for i, j in self.pairs]
        return self.fc(self.dropout(torch.cat(pairs, dim=1)))


@contextmanager
def strided(backbone: Backbone) -> Iterator[Backbone]:
    """Within this, stage 4 of R3D has its spatial stride, whether it was pretrained with it or not."""
    if not isinstance(backbone, R3D):
        yield backbone
        return
    before = backbone.last_stride
    backbone.last_stride = 2
    try:
        yield backbone
    finally:
        backbone.last_stride = before
