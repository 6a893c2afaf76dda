"""ST-GCN (Yan et al. 2018): graph convolution over joints, convolution over time, ten layers; FSAR's topology in it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.tasks.skeleton.graph import subsets
from fedreel.tasks.skeleton.network import Pointwise, Skeleton, SkeletonBackbone, Topologies, spread
from fedreel.tasks.skeleton.temporal import Timewise, shortcut
from fedreel.tasks.skeleton.topology import Kind

WIDTHS = (1, 1, 1, 1, 2, 2, 2, 4, 4)  # of all layers but the last, times the first's; time is halved where it doubles
LAST = (4, 7, 10)  # layers after which a block ends
TEMPORAL = 9  # frames that a temporal convolution sees


class STGCN(SkeletonBackbone):
    """Width 16 is FSAR's quarter; 64 with 256 features is the original."""

    def __init__(
        self,
        skeleton: Skeleton,
        width: int = 16,
        features: int = 128,
        *,
        dropout: float = 0.0,
        neck: int = 0,
        topology: Kind = "graph",
        per_layer: bool = False,
    ) -> None:
        super().__init__(skeleton, features, neck)
        graph = subsets(skeleton.joints, skeleton.bones, skeleton.centre, skeleton.partition)
        self.topologies = Topologies(graph, topology, len(WIDTHS) + 1, per_layer)
        channels = [3, *(width * w for w in WIDTHS), features]
        strides = [2 if i in LAST[:-1] else 1 for i in range(len(channels) - 1)]
        self.layers = nn.ModuleList(
            Layer(channels[i], channels[i + 1], graph.shape, strides[i], dropout, residual=i > 0)
            for i in range(len(strides))
        )

    def block(self, number: int, h: Tensor) -> Tensor:
        layers = range(LAST[number - 1] if number else 0, LAST[number])
        for i, matrices in zip(layers, self.topologies.matrices(layers)):
            h = self.layers[i](h, matrices)
        return h


class Layer(nn.Module):
    """Spatial: 1 x 1 convolution to one map per subset, moved along the edges. Temporal: 9 frames. `importance` is the
    learnable mask of the edges."""

    def __init__(self, channels: int, out: int, graph: torch.Size, stride: int, dropout: float, residual: bool) -> None:
        super().__init__()
        self.importance = nn.Parameter(torch.ones(graph))
        self.spatial = Pointwise(channels, graph[0] * out)
        self.spatial_bn = nn.BatchNorm2d(out)
        self.temporal = Timewise(out, out, TEMPORAL, stride)
        self.temporal_bn = nn.BatchNorm2d(out)
        self.dropout = dropout
        self.residual: nn.Module | None = None
        if residual:
            self.residual = shortcut(channels, out, stride)

    def forward(self, x: Tensor, matrices: Tensor) -> Tensor:
        h = F.relu(self.spatial_bn(spread(self.spatial(x), matrices * self.importance)))
        h = self.temporal_bn(self.temporal(h))
        if self.dropout:
            h = F.dropout(h, self.dropout, self.training)
        return F.relu(h if self.residual is None else h + self.residual(x))
