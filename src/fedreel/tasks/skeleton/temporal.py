"""What the graph networks share: convolutions over time, shortcuts, starting weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.machine.device import under_vmap
from fedreel.tasks.skeleton.network import Pointwise


class Branches(nn.Module):
    """MS-G3D's multi-scale convolution over time. Each branch gives an equal part of the channels: one convolution per
    dilation, a maximum over three frames, a 1 x 1 convolution alone. The 1 x 1 convolutions that the others begin with
    are run as one, as are the batch norms."""

    def __init__(self, channels: int, out: int, kernel: int, dilations: Sequence[int], stride: int = 1) -> None:
        super().__init__()
        self.part = part = out // (len(dilations) + 2)
        self.stride = stride
        self.reduce = Pointwise(channels, out - part)
        self.reduce_bn = nn.BatchNorm2d(out - part)
        self.dilated = nn.ModuleList(Timewise(part, part, kernel, stride, dilation) for dilation in dilations)
        self.direct = Pointwise(channels, part, stride)
        self.bn = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        *parts, pooled = F.relu(self.reduce_bn(self.reduce(x))).split(self.part, dim=1)
        maps = [conv(part) for conv, part in zip(self.dilated, parts)]
        maps += [F.max_pool2d(pooled, (3, 1), (self.stride, 1), (1, 0)), self.direct(x)]
        return self.bn(torch.cat(maps, dim=1))


class Timewise(nn.Conv2d):
    """A convolution over time alone. On CPUs, as one product over frames and channels, it is up to twice as fast."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__(channels, out, (kernel, 1), (stride, 1), (kernel // 2 * dilation, 0), (dilation, 1))

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda or under_vmap():
            return super().forward(x)
        reach, dilation, stride = int(self.padding[0]), self.dilation[0], self.stride[0]
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 0, 0, reach, reach))
        seen = padded.unfold(1, 2 * reach + 1, stride)[..., ::dilation].flatten(3)
        return F.linear(seen, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def shortcut(channels: int, out: int, stride: int = 1) -> nn.Module:
    """What a residual connection does: nothing where the shapes agree, else a 1 x 1 convolution."""
    if channels == out and stride == 1:
        return nn.Identity()
    return nn.Sequential(Pointwise(channels, out, stride), nn.BatchNorm2d(out))


def start(module: nn.Module, fan: int) -> None:
    """He et al.'s normal weights for this many outgoing connections, and no bias, for the convolutions of a module."""
    for conv in module.modules():
        if isinstance(conv, nn.Conv2d):
            nn.init.normal_(conv.weight, std=(2 / fan) ** 0.5)
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
