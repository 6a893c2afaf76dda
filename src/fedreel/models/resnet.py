"""Image ResNets 10, 18, 34 and 50 (He et al. 2016), as FedLID uses them, with torchvision's tensor names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedreel.config import check_ranges
from fedreel.fields import ModelName
from fedreel.kernels.norm import normed
from fedreel.models.backbone import Backbone, BackboneConfig, Images
from fedreel.models.classifier import Convolved
from fedreel.models.convolution import Conv2d
from fedreel.models.group_norm import NormKind
from fedreel.models.pretrained import load_pretrained


@dataclass(frozen=True)
class ResNetConfig(BackboneConfig):
    """`small_stem` is for images of 32 pixels: a 3x3 convolution of stride 1 and no max-pooling."""

    takes: ClassVar = "images"
    blocks: ClassVar[tuple[int, int, int, int]]
    bottleneck: ClassVar = False

    width: int = 64
    small_stem: bool = False
    norm: NormKind = "batch"  # group: a group norm in place of each batch norm
    init: ModelName = ""  # a file of torchvision's weights; empty: random

    def __post_init__(self) -> None:
        check_ranges(self, "task.backbone", width=(1, math.inf))

    def network(self, sample: Images) -> ResNet:
        return load_pretrained(ResNet(self), self.init, self.norm)


class ResNet10Config(ResNetConfig):
    """ResNet-10: one block a stage, for small pictures on a CPU."""

    blocks = (1, 1, 1, 1)


class ResNet18Config(ResNetConfig):
    """ResNet-18 (He et al. 2016): two blocks a stage."""

    blocks = (2, 2, 2, 2)


class ResNet34Config(ResNetConfig):
    """ResNet-34 (He et al. 2016): 3, 4, 6 and 3 blocks."""

    blocks = (3, 4, 6, 3)


class ResNet50Config(ResNetConfig):
    """ResNet-50 (He et al. 2016): 3, 4, 6 and 3 bottleneck blocks."""

    blocks = (3, 4, 6, 3)
    bottleneck = True


class ResNet(Backbone):
    """Images (N, 3, H, W) to a map (N, C, H/32, W/32), or (N, C, H/8, W/8) with the small stem, by `features`; pooled
    to (N, C) by calling it. C is 8 width, or 32 width with bottleneck blocks."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        width, blocks = config.width, config.blocks
        block = Bottleneck if config.bottleneck else BasicBlock
        kernel, stride = (3, 1) if config.small_stem else (7, 2)
        self.conv1 = Conv2d(3, width, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if config.small_stem else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        inner, out = width, block.expansion * width
        self.layer1 = _stage(block, width, inner, blocks[0], 1)
        self.layer2 = _stage(block, out, 2 * inner, blocks[1], 2)
        self.layer3 = _stage(block, 2 * out, 4 * inner, blocks[2], 2)
        self.layer4 = _stage(block, 4 * out, 8 * inner, blocks[3], 2)
        self.out_channels = 8 * out
        self.init_weights()

    def features(self, x: Tensor) -> Tensor:
        x = self.maxpool(normed(self.bn1, self.conv1(x), then="relu"))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv2d(inputs, inner, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.downsample = _shortcut(inputs, inner, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = normed(self.bn1, self.conv1(x), then="relu")
        return normed(self.bn2, self.conv2(x), shortcut, then="relu")


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a shortcut; the 3x3 one strides, as in the published weights."""

    expansion = 4

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * inner)
        self.downsample = _shortcut(inputs, 4 * inner, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = normed(self.bn1, self.conv1(x), then="relu")
        x = normed(self.bn2, self.conv2(x), then="relu")
        return normed(self.bn3, self.conv3(x), shortcut, then="relu")


def _shortcut(inputs: int, outputs: int, stride: int) -> Convolved | None:
    if inputs == outputs and stride == 1:
        return None
    return Convolved(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


def _stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, inner: int, blocks: int, stride: int
) -> nn.Sequential:
    outputs = block.expansion * inner
    rest = (block(outputs, inner, 1) for _ in range(blocks - 1))
    return nn.Sequential(block(inputs, inner, stride), *rest)
