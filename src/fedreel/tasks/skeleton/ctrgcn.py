"""CTR-GCN (Chen et al. 2021): a topology for every channel, refined from the motion at hand; FSAR's topology in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.tasks.skeleton.graph import subsets
from fedreel.tasks.skeleton.network import Pointwise, Skeleton, SkeletonBackbone, Topologies
from fedreel.tasks.skeleton.stgcn import LAST, WIDTHS
from fedreel.tasks.skeleton.temporal import Branches, check_width, shortcut, start
from fedreel.tasks.skeleton.topology import Kind

KERNEL, DILATIONS = 5, (1, 2)  # of the temporal convolutions
REDUCTION = 8  # channels for each one that relations between joints are made of


class CTRGCN(SkeletonBackbone):
    """Width 64 is the original, 16 a quarter; the last layer gives `features` channels, 4 * width unless told.

    In the published network each layer learns its own matrices, which start as the graph: kind `graph`. With any other
    kind FSAR's topology takes their place. The graph is ST-GCN's, normalised as a whole; the authors' code splits the
    same bones into inward and outward ones and normalises these apart."""

    def __init__(
        self,
        skeleton: Skeleton,
        width: int = 16,
        features: int | None = None,
        *,
        dropout: float = 0.0,
        neck: int = 0,
        topology: Kind = "graph",
        per_layer: bool = False,
    ) -> None:
        features = 4 * width if features is None else features
        check_width("CTR-GCN", "width", width, REDUCTION)
        check_width("CTR-GCN", "features", features, len(DILATIONS) + 2)
        super().__init__(skeleton, features, neck)
        graph = subsets(skeleton.joints, skeleton.bones, skeleton.centre, skeleton.partition)
        channels = [3, *(width * w for w in WIDTHS), features]
        strides = [2 if i in LAST[:-1] else 1 for i in range(len(channels) - 1)]
        own = topology == "graph"
        self.topologies = None if own else Topologies(graph, topology, len(strides), per_layer)
        self.matrices = nn.ParameterList(graph.clone() for _ in strides) if own else None
        self.layers = nn.ModuleList(
            Layer(channels[i], channels[i + 1], len(graph), strides[i], dropout, residual=i > 0)
            for i in range(len(strides))
        )

    def block(self, number: int, h: Tensor) -> Tensor:
        for i in range(LAST[number - 1] if number else 0, LAST[number]):
            h = self.layers[i](h, self._matrix(i))
        return h

    def _matrix(self, layer: int) -> Tensor:
        if self.matrices is not None:
            return self.matrices[layer]
        assert self.topologies is not None
        return self.topologies.matrix(layer)


class Layer(nn.Module):
    """Refined graph convolution and branches over time, each followed by its residual connection."""

    def __init__(self, channels: int, out: int, subsets: int, stride: int, dropout: float, residual: bool) -> None:
        super().__init__()
        self.spatial = RefinedConvolution(channels, out, subsets)
        self.spatial_bn = nn.BatchNorm2d(out)
        nn.init.constant_(self.spatial_bn.weight, 1e-6)  # a layer starts as if it had no graph
        self.spatial_residual = shortcut(channels, out)
        self.temporal = Branches(out, out, KERNEL, DILATIONS, stride)
        self.dropout = dropout
        self.residual = shortcut(channels, out, stride) if residual else None
        _start(self)

    def forward(self, x: Tensor, matrices: Tensor) -> Tensor:
        h = F.relu(self.spatial_bn(self.spatial(x, matrices)) + self.spatial_residual(x))
        h = self.temporal(h)
        if self.dropout:
            h = F.dropout(h, self.dropout, self.training)
        return F.relu(h if self.residual is None else h + self.residual(x))


class RefinedConvolution(nn.Module):
    """Channel-wise topology refinement. For each subset and channel, matrix + strength * a function of how the mean
    features of two joints differ; channels move along their own matrices."""

    def __init__(self, channels: int, out: int, subsets: int) -> None:
        super().__init__()
        hidden = REDUCTION if channels == 3 else channels // REDUCTION
        self.subsets = subsets
        self.source = Pointwise(channels, subsets * hidden)
        self.target = Pointwise(channels, subsets * hidden)
        self.refine = nn.Conv2d(subsets * hidden, subsets * out, 1, groups=subsets)
        self.transform = Pointwise(channels, subsets * out)
        self.strength = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, matrices: Tensor) -> Tensor:
        n, v = x.shape[0], x.shape[3]
        mean = x.mean(dim=2, keepdim=True)
        differences = torch.tanh(self.source(mean).transpose(2, 3) - self.target(mean)).contiguous()
        refined = (self.refine(differences) * self.strength).view(n, self.subsets, -1, v, v) + matrices[:, None]
        maps = self.transform(x).unflatten(1, (self.subsets, -1))
        # Subsets beside the joints they come from: one product per channel moves and adds them up.
        moved = Product.apply(maps.permute(0, 2, 3, 1, 4).flatten(3), refined.transpose(1, 2).flatten(2, 3))
        return moved.contiguous(memory_format=torch.channels_last)


class Product(torch.autograd.Function):
    """torch.matmul of many small matrices. Its own gradient multiplies by a transposed view, for which OpenBLAS takes
    fifteen times as long as for a copy."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return torch.matmul(grad, b.mT.contiguous()), torch.matmul(a.mT, grad)


def _start(layer: Layer) -> None:
    """The authors' starting weights. What is one convolution here is several in their code, so the fans are theirs."""
    space, time = layer.spatial, layer.temporal
    hidden, out = space.source.out_channels // space.subsets, layer.spatial_bn.num_features
    for module, fan in (
        (space.source, hidden),
        (space.target, hidden),
        (space.refine, out),
        (space.transform, out),
        (layer.spatial_residual, out),
        (time.reduce, time.part),
        (time.dilated, time.part * KERNEL),
        (time.direct, time.part),
    ):
        start(module, fan)
    if layer.residual is not None:
        start(layer.residual, out)
    for bn in (time.reduce_bn, time.bn):
        nn.init.normal_(bn.weight, 1, 0.02)
