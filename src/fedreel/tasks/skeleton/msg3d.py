"""MS-G3D (Liu et al. 2020): joints many bones apart, and across the frames of a window; FSAR's topology in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.machine.device import under_vmap
from fedreel.models.pretrained import load_pretrained
from fedreel.tasks.skeleton.graph import hops, scales
from fedreel.tasks.skeleton.network import (
    BLOCKS,
    Pointwise,
    Skeleton,
    SkeletonBackbone,
    SkeletonConfig,
    Topologies,
)
from fedreel.tasks.skeleton.temporal import Branches, shortcut

SCALES, WINDOW_SCALES = 13, 6  # distances in bones, from 0: in a frame, in a window
WINDOWS = (3, 5)  # frames
KERNEL, DILATIONS = 3, (1, 2, 3, 4)  # of the temporal convolutions


@dataclass(frozen=True)
class MSG3DConfig(SkeletonConfig):
    """Width 96 is the original, 24 a quarter."""

    shares: ClassVar = (len(DILATIONS) + 2, len(DILATIONS) + 2)

    width: int = 24

    def network(self, sample: Skeleton) -> MSG3D:
        return load_pretrained(MSG3D(self, sample), self.init)


class MSG3D(SkeletonBackbone):
    """Three stages. The windows see the first scales of the same topology."""

    def __init__(self, config: MSG3DConfig, skeleton: Skeleton) -> None:
        super().__init__(config, skeleton)
        graph = scales(skeleton.joints, skeleton.bones, SCALES)
        shares = [window_shares(skeleton, graph, window) for window in WINDOWS]
        width = config.width
        channels, lasts = [3, width, 2 * width, 4 * width], [width, 2 * width, config.channels]
        self.topologies = Topologies(graph, config.topology, BLOCKS, config.per_layer)
        self.stages = nn.ModuleList(
            Stage(channels[i], channels[i + 1], lasts[i], shares, config.dropout, first=i == 0) for i in range(BLOCKS)
        )

    def block(self, number: int, h: Tensor) -> Tensor:
        return self.stages[number](h, self.topologies.matrix(number))


class Stage(nn.Module):
    """Two pathways that are added up, one through frames and one through windows, and a convolution over time. Every
    stage but the first halves time."""

    def __init__(
        self, channels: int, out: int, last: int, shares: Sequence[Tensor], dropout: float, first: bool
    ) -> None:
        super().__init__()
        joints = shares[0].shape[1]
        stride, inner = (1, out) if first else (2, channels)
        self.spatial = ScalesConvolution(channels, inner, SCALES, joints)
        self.temporal = nn.Sequential(Temporal(inner, out, stride, dropout), nn.ReLU(), Temporal(out, out, 1, dropout))
        self.windows = nn.ModuleList(Window(channels, inner, out, share, stride) for share in shares)
        self.last = Temporal(out, last, 1, dropout)

    def forward(self, x: Tensor, matrices: Tensor) -> Tensor:
        h = self.temporal(self.spatial(x, matrices))
        for window in self.windows:
            h = h + window(x, matrices[:WINDOW_SCALES])
        return F.relu(self.last(F.relu(h)))


class Temporal(nn.Module):
    """Branches over time and a residual connection."""

    def __init__(self, channels: int, out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.branches = Branches(channels, out, KERNEL, DILATIONS, stride)
        self.residual = shortcut(channels, out, stride)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        h = self.branches(x)
        if self.dropout:
            h = F.dropout(h, self.dropout, self.training)
        return h + self.residual(x)


class ScalesConvolution(nn.Module):
    """Move features along every scale's matrix, then a 1 x 1 convolution over what all scales brought. `mask` is the
    learnable residual of the matrices."""

    def __init__(self, channels: int, out: int, count: int, nodes: int) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.empty(count, nodes, nodes).uniform_(-1e-6, 1e-6))
        self.conv = Pointwise(count * channels, out)
        self.bn = nn.BatchNorm2d(out)

    def forward(self, x: Tensor, matrices: Tensor) -> Tensor:
        n, _, t, v = x.shape
        across = (matrices + self.mask).permute(2, 0, 1).reshape(-1, v)
        moved = torch.matmul(across, x.permute(0, 2, 3, 1).reshape(n * t, v, -1))
        return F.relu(self.bn(self.conv(moved.view(n, t, v, -1).permute(0, 3, 1, 2))))


class Window(nn.Module):
    """G3D: the joints of all frames of a window are the nodes of one graph; then the window becomes one frame.
    `shares` says what of a matrix entry goes to each pair of frames."""

    shares: Tensor

    def __init__(self, channels: int, inner: int, out: int, shares: Tensor, stride: int) -> None:
        super().__init__()
        _, joints, self.size, _, _ = shares.shape
        self.stride = stride
        self.register_buffer("shares", shares.clone(), persistent=False)
        self.spatial = ScalesConvolution(channels, inner, len(shares), joints * self.size)
        self.collapse = Pointwise(self.size * inner, out)
        self.bn = nn.BatchNorm2d(out)

    def forward(self, x: Tensor, matrices: Tensor) -> Tensor:
        n, c, _, v = x.shape
        windows = F.pad(x.permute(0, 2, 3, 1), (0, 0, 0, 0, self.size // 2, self.size // 2))
        windows = unfolded(windows, self.size, self.stride).transpose(3, 4)  # (N, T, V, frames, C)
        nodes = windows.reshape(n, -1, v * self.size, c).permute(0, 3, 1, 2)
        whole = (self.shares * matrices[:, :, None, :, None]).view(len(matrices), v * self.size, v * self.size)
        h = self.spatial(nodes, whole).permute(0, 2, 3, 1).reshape(n, -1, v, self.collapse.in_channels)
        return self.bn(self.collapse(h.permute(0, 3, 1, 2)))


def unfolded(frames: Tensor, size: int, stride: int) -> Tensor:
    """The windows of so many frames that lie `stride` apart: (N, T, V, C) -> (N, windows, V, C, size)."""
    return Unfolded.apply(frames, size, stride) if under_vmap() else frames.unfold(1, size, stride)


class Unfolded(torch.autograd.Function):
    """Tensor.unfold over dimension 1 with a derivative that vmap has rules for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(frames: Tensor, size: int, stride: int) -> Tensor:
        return frames.unfold(1, size, stride).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        frames, ctx.size, ctx.stride = inputs
        ctx.length = frames.shape[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        n, windows, *rest = grad.shape[:-1]
        span = ctx.stride * (windows - 1) + 1
        total = grad.new_zeros(n, ctx.length, *rest)
        for i in range(ctx.size):
            total[:, i : i + span : ctx.stride] += grad[..., i]
        return total, None, None


def window_shares(skeleton: Skeleton, graph: Tensor, size: int) -> Tensor:
    """What to multiply a frame's matrices with to get those of a window (scales, V, frames, V, frames).

    In the published window graph a joint is one bone away from itself in every other frame and from its neighbours in
    every frame; its scales are normalised anew. Where the frame's matrix is 0 and a learned one may not be, an entry
    is shared evenly among the frames."""
    joints, count = skeleton.joints, WINDOW_SCALES
    near = hops(joints, skeleton.bones) <= 1
    nodes = [(v, frame) for v in range(joints) for frame in range(size)]
    edges = [(a, b) for a, (v, _) in enumerate(nodes) for b, (w, _) in enumerate(nodes) if a < b and near[v, w]]
    whole = scales(len(nodes), edges, count).view(count, joints, size, joints, size)
    frame = graph[:count, :, None, :, None]
    return torch.where(frame > 0, whole / frame, torch.tensor(1 / size))
