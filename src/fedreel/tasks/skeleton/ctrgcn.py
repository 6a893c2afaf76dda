"""CTR-GCN (Chen et al. 2021): a topology for every channel, refined from the motion at hand; FSAR's topology in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.machine.device import channels_together
from fedreel.models.pretrained import load_pretrained
from fedreel.tasks.skeleton.layered import LayeredBackbone, LayeredConfig
from fedreel.tasks.skeleton.network import Pointwise, Skeleton
from fedreel.tasks.skeleton.temporal import Branches, shortcut, start

KERNEL, DILATIONS = 5, (1, 2)  # of the temporal convolutions
REDUCTION = 8  # channels for each one that relations between joints are made of


@dataclass(frozen=True)
class CTRGCNConfig(LayeredConfig):
    """Width 64 is the original, 16 a quarter."""

    shares: ClassVar = (REDUCTION, len(DILATIONS) + 2)

    def network(self, sample: Skeleton) -> CTRGCN:
        return load_pretrained(CTRGCN(self, sample), self.init)


class CTRGCN(LayeredBackbone):
    """In the published network each layer learns its own matrices, which start as the graph: kind `graph`. With any
    other kind FSAR's topology takes their place. The graph is ST-GCN's, normalised as a whole; the authors' code splits
    the same bones into inward and outward ones and normalises these apart."""

    matrices: nn.ParameterList | None

    def __init__(self, config: CTRGCNConfig, skeleton: Skeleton) -> None:
        super().__init__(config, skeleton, Layer)

    def add_matrices(self, config: LayeredConfig, graph: Tensor, layers: int) -> None:
        self.matrices = None
        if config.topology == "graph":
            self.matrices = nn.ParameterList(graph.clone() for _ in range(layers))
        else:
            super().add_matrices(config, graph, layers)

    def matrices_of(self, layers: range) -> list[Tensor]:
        return super().matrices_of(layers) if self.matrices is None else [self.matrices[i] for i in layers]


class Layer(nn.Module):
    """Refined graph convolution and branches over time, each followed by its residual connection."""

    def __init__(self, channels: int, out: int, graph: Tensor, stride: int, dropout: float, first: bool) -> None:
        super().__init__()
        self.spatial = RefinedConvolution(channels, out, len(graph))
        self.spatial_bn = nn.BatchNorm2d(out)
        nn.init.constant_(self.spatial_bn.weight, 1e-6)  # a layer starts as if it had no graph
        self.spatial_residual = shortcut(channels, out)
        self.temporal = Branches(out, out, KERNEL, DILATIONS, stride)
        self.dropout = dropout
        self.residual = None if first else shortcut(channels, out, stride)
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
        return channels_together(moved)


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
