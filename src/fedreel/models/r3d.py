"""R3D video ResNet (Tran et al. 2018), as FedVSSL uses it, with the tensor names of torchvision's r3d_18."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedreel.config import check_ranges
from fedreel.fields import ModelName
from fedreel.models.backbone import Backbone, BackboneConfig, Clips, Published
from fedreel.models.classifier import Convolved
from fedreel.models.convolution import Conv3d
from fedreel.models.group_norm import NormKind
from fedreel.models.pretrained import load_pretrained

Stride = tuple[int, int, int]
CTP = (  # names in the files of Catch-the-Patch (Microsoft's CtP), which FedVSSL's code has too
    (r"\b(conv[12]|downsample)\.conv\.", r"\1.0."),
    (r"\bbn([12])\.", r"conv\1.1."),
    (r"\bdownsample_bn\.", "downsample.1."),
    (r"^stem\.conv\.", "stem.0."),
    (r"^stem\.bn\.", "stem.1."),
)


@dataclass(frozen=True)
class R3DConfig(BackboneConfig):
    """The default is the 18-layer network of the published weights; FedVSSL's setting is bn_eps = 1e-3. A stem of size
    3 is cheaper and enough for tiny clips."""

    takes: ClassVar = "clips"

    width: int = 64
    blocks: tuple[int, int, int, int] = (2, 2, 2, 2)  # in each stage
    bn_eps: float = 1e-5
    stem_size: int = 7
    stem_stride: Stride = (1, 2, 2)
    norm: NormKind = "batch"  # group: a group norm in place of each batch norm
    init: ModelName = ""  # a file of weights: torchvision's, CtP's, FedVSSL's or fedreel's; empty: random

    def __post_init__(self) -> None:
        check_ranges(self, "task.backbone", bn_eps=(0, math.inf))
        check_ranges(
            self, "task.backbone", **dict.fromkeys(("width", "blocks", "stem_size", "stem_stride"), (1, math.inf))
        )

    def network(self, sample: Clips) -> R3D:
        return load_pretrained(R3D(self), self.init, self.norm)


class R3D(Backbone):
    """Clips (N, 3, T, H, W) to a map (N, 8 width, T/8, H/16, W/16) by `features`, to its mean by calling it."""

    published = Published(renamed=CTP)

    def __init__(self, config: R3DConfig) -> None:
        super().__init__()
        width, blocks, bn_eps, stem_size = config.width, config.blocks, config.bn_eps, config.stem_size
        self.out_channels = 8 * width
        size, zeros = (3, stem_size, stem_size), (1, stem_size // 2, stem_size // 2)
        self.stem = Convolved(
            Conv3d(3, width, size, config.stem_stride, zeros, bias=False), BatchNorm(width, eps=bn_eps)
        )
        self.layer1 = _stage(width, width, blocks[0], (1, 1, 1), bn_eps)
        self.layer2 = _stage(width, 2 * width, blocks[1], (2, 2, 2), bn_eps)
        self.layer3 = _stage(2 * width, 4 * width, blocks[2], (2, 2, 2), bn_eps)
        self.layer4 = _stage(4 * width, 8 * width, blocks[3], (2, 2, 2), bn_eps)
        self.init_weights()

    def features(self, x: Tensor) -> Tensor:
        return self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x, then="relu")))))

    @property
    def last_stride(self) -> int:
        """The spatial stride of stage 4: 2, or 1 for a map twice as fine, as Catch-the-Patch has it. No tensor depends
        on it."""
        return self._striding[0].stride[1]

    @last_stride.setter
    def last_stride(self, stride: int) -> None:
        for convolution in self._striding:
            convolution.stride = (2, stride, stride)

    @property
    def _striding(self) -> list[nn.Conv3d]:
        return [m for m in self.layer4[0].modules() if isinstance(m, nn.Conv3d) and m.stride[0] == 2]


class BatchNorm(nn.BatchNorm3d):
    """Batch norm that is quick on a GPU too, where channels lie together in memory: PyTorch's kernels for that know
    images only, so frames are shown to them as one tall image, without a copy."""

    def forward(self, x: Tensor) -> Tensor:
        return self.of_tall(x) if x.is_cuda and x.stride(1) == 1 else super().forward(x)

    def of_tall(self, x: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        tall = x.permute(0, 2, 3, 4, 1).reshape(n, t * h, w, c).permute(0, 3, 1, 2)
        return super().forward(tall).permute(0, 2, 3, 1).view(n, t, h, w, c).permute(0, 4, 1, 2, 3)

    def _check_input_dim(self, input: Tensor) -> None:
        """Clips, or the tall images they are seen as."""


class BasicBlock(nn.Module):
    """Two 3x3x3 convolutions around a shortcut, which is a 1x1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: Stride, bn_eps: float) -> None:
        super().__init__()
        self.conv1 = Convolved(
            Conv3d(inputs, outputs, 3, stride=stride, padding=1, bias=False), BatchNorm(outputs, eps=bn_eps)
        )
        self.conv2 = Convolved(Conv3d(outputs, outputs, 3, padding=1, bias=False), BatchNorm(outputs, eps=bn_eps))
        self.downsample: Convolved | None = None
        if inputs != outputs or stride != (1, 1, 1):
            self.downsample = Convolved(
                nn.Conv3d(inputs, outputs, 1, stride=stride, bias=False), BatchNorm(outputs, eps=bn_eps)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.conv2(self.conv1(x, then="relu"), shortcut, then="relu")


def _stage(inputs: int, outputs: int, blocks: int, stride: Stride, bn_eps: float) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride, bn_eps)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, (1, 1, 1), bn_eps) for _ in range(blocks - 1)))
