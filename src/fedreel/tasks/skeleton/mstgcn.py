"""MST-GCN (Chen et al. 2021): channels in four parts that pass their result on; FSAR's topology in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.models.pretrained import load_pretrained
from fedreel.tasks.skeleton.layered import LayeredBackbone, LayeredConfig
from fedreel.tasks.skeleton.network import Pointwise, Skeleton, spread
from fedreel.tasks.skeleton.stgcn import TEMPORAL
from fedreel.tasks.skeleton.temporal import Timewise, shortcut, start

PARTS = 4  # of the channels, in space and in time


@dataclass(frozen=True)
class MSTGCNConfig(LayeredConfig):
    """Width 112 is the original, 28 a quarter."""

    shares: ClassVar = (PARTS, PARTS)

    width: int = 28

    def network(self, sample: Skeleton) -> MSTGCN:
        return load_pretrained(MSTGCN(self, sample), self.init)


class MSTGCN(LayeredBackbone):
    """The graph is ST-GCN's; the authors' code normalises its inward and outward bones apart."""

    def __init__(self, config: MSTGCNConfig, skeleton: Skeleton) -> None:
        super().__init__(config, skeleton, Layer)


class Layer(nn.Module):
    """Graph convolutions, then convolutions over time, each on a part of the channels. A part is added to what the part
    before it became, but not where the width or the length in time changes. The first layer has one part and no
    residual connections."""

    def __init__(self, channels: int, out: int, graph: Tensor, stride: int, dropout: float, first: bool) -> None:
        super().__init__()
        parts = 1 if first else PARTS
        self.chained = channels == out, stride == 1
        self.dropout = dropout
        self.bn = None if first else nn.BatchNorm2d(channels)
        self.spatial = nn.ModuleList(GraphConvolution(channels // parts, out // parts, graph) for _ in range(parts))
        self.spatial_residual = None if first else shortcut(channels, out)
        self.temporal = nn.ModuleList(_temporal(out // parts, stride) for _ in range(parts))
        self.temporal_residual = None if first else shortcut(out, out, stride)
        for residual in (self.spatial_residual, self.temporal_residual):
            if residual is not None:
                start(residual, out)

    def forward(self, x: Tensor, matrices: Tensor) -> Tensor:
        h = x if self.bn is None else self.bn(x)
        h = _in_parts(h, [partial(unit, matrices=matrices) for unit in self.spatial], self.chained[0])
        x = F.relu(h if self.spatial_residual is None else h + self.spatial_residual(x))
        h = _in_parts(x, list(self.temporal), self.chained[1])
        if self.dropout:
            h = F.dropout(h, self.dropout, self.training)
        return F.relu(h if self.temporal_residual is None else h + self.temporal_residual(x))


class GraphConvolution(nn.Module):
    """ST-GCN's, but the learnable mask of the edges starts as the graph and is added to the matrices."""

    def __init__(self, channels: int, out: int, graph: Tensor) -> None:
        super().__init__()
        self.mask = nn.Parameter(graph.clone())
        self.conv = Pointwise(channels, len(graph) * out)
        self.bn = nn.BatchNorm2d(out)
        start(self.conv, channels * len(graph) * out)

    def forward(self, x: Tensor, matrices: Tensor) -> Tensor:
        return self.bn(spread(self.conv(x), matrices + self.mask))


def _temporal(channels: int, stride: int) -> nn.Module:
    conv = Timewise(channels, channels, TEMPORAL, stride)
    start(conv, channels * TEMPORAL)
    return nn.Sequential(conv, nn.BatchNorm2d(channels))


def _in_parts(x: Tensor, units: Sequence[Callable[[Tensor], Tensor]], chained: bool) -> Tensor:
    """Each unit on its part of the channels, as in Res2Net."""
    done: list[Tensor] = []
    for unit, part in zip(units, x.chunk(len(units), dim=1)):
        done.append(unit(done[-1] + part if chained and done else part))
    return torch.cat(done, dim=1)
