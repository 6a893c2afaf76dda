"""EfficientNet-Lite0 (Tan and Le 2019; Liu 2020), with the tensor names of the package `efficientnet_lite_pytorch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from safetensors.torch import load_file
from torch import Tensor, nn

from fedreel.config import check_ranges
from fedreel.data.input_scale import LITE, InputScale
from fedreel.fields import ModelName
from fedreel.kernels.norm import normed
from fedreel.models.backbone import Backbone, BackboneConfig, Images, Published
from fedreel.models.convolution import Depthwise2d, onednn
from fedreel.models.pretrained import load_pretrained
from fedreel.zoo import HERE

STEM, HEAD = 32, 1280
_IN_ZOO = "backbone.image."  # how names of its tensors begin there
STAGES = (  # blocks, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


@dataclass(frozen=True)
class EfficientNetLite0Config(BackboneConfig):
    """`small_stem` is for images of 32 to 64 pixels: the stem and the first stage that halves the map keep its size. No
    tensor depends on it, so published weights fit both. With fewer `stages` than seven the network ends after so many
    of them: it sees less of what things are, and more exactly where their parts are."""

    takes: ClassVar = "images"

    small_stem: bool = False
    stages: int = len(STAGES)
    init: ModelName = ""  # imagenet, or a file of weights under the package's names; empty: random

    def __post_init__(self) -> None:
        check_ranges(self, "task.backbone", stages=(1, len(STAGES)))

    @property
    def input_scale(self) -> InputScale:
        return LITE

    @property
    def elsewhere(self) -> str:
        return self.init if self.init == "imagenet" else ""

    def network(self, sample: Images) -> EfficientNetLite0:
        return load_pretrained(EfficientNetLite0(self.small_stem, self.stages), self.init)


class EfficientNetLite0(Backbone):
    """Images (N, 3, H, W) to a map (N, 1280, H/32, W/32) by `features`, pooled to (N, 1280) by calling it. With
    `small_stem` the map is (N, 1280, H/8, W/8): 4x4 for 32 pixels, 8x8 for 64. Sides that cannot be halved are rounded
    down. After fewer `stages` than all there is no last convolution: the map is that of the last of them, 112 channels
    and H/16 after five. Unlike the package, training leaves out no blocks at random (drop connect)."""

    def __init__(self, small_stem: bool = False, stages: int = len(STAGES)) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(3, STEM, 3, stride=1 if small_stem else 2)
        self._bn0 = _norm(STEM)
        self._blocks = nn.ModuleList()
        inputs = STEM
        for stage, (blocks, kernel, stride, expansion, outputs) in enumerate(STAGES[:stages]):
            first = 1 if small_stem and stage == 1 else stride
            for i in range(blocks):
                self._blocks.append(Block(inputs, outputs, kernel, 1 if i else first, expansion))
                inputs = outputs
        self.whole = stages == len(STAGES)
        if self.whole:
            self._conv_head = SameConv2d(inputs, HEAD, 1)
            self._bn1 = _norm(HEAD)
        else:
            later = tuple(f"_blocks.{i}." for i in range(len(self._blocks), sum(stage[0] for stage in STAGES)))
            self.published = Published(elsewhere=(*Published.elsewhere, "_conv_head.", "_bn1.", *later))
        self.out_channels = HEAD if self.whole else inputs
        self.init_weights()

    def features(self, x: Tensor) -> Tensor:
        with onednn():
            x = normed(self._bn0, self._conv_stem(x), then="relu6")
            for block in self._blocks:
                x = block(x)
            return normed(self._bn1, self._conv_head(x), then="relu6") if self.whole else x

    def imagenet(self) -> dict[str, Tensor]:
        """Those of the model `imagenet`, which comes with fedreel, without its classifier and later stages."""
        tensors = load_file(HERE / "imagenet" / "model" / "global.safetensors")
        named = {n.removeprefix(_IN_ZOO): t.float() for n, t in tensors.items() if n.startswith(_IN_ZOO)}
        return {name: tensor for name, tensor in named.items() if not name.startswith(self.published.elsewhere)}

    def init_weights(self) -> None:
        """Kaiming by the outputs that an input reaches. A depthwise input reaches one channel only: counting all of
        them, as PyTorch does, would leave numbers so small that the epsilon of the norms outweighs them."""
        for module in self.modules():
            if isinstance(module, SameConv2d | SameDepthwise2d):
                reached = module.out_channels // module.groups * module.kernel_size[0] ** 2
                nn.init.normal_(module.weight, std=(2 / reached) ** 0.5)


class Block(nn.Module):
    """More channels, a depthwise convolution, fewer channels without a rectifier; a shortcut where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = expansion * inputs
        self.expands = expansion > 1
        if self.expands:
            self._expand_conv = SameConv2d(inputs, inner, 1)
            self._bn0 = _norm(inner)
        self._depthwise_conv = SameDepthwise2d(inner, kernel, stride)
        self._bn1 = _norm(inner)
        self._project_conv = SameConv2d(inner, outputs, 1)
        self._bn2 = _norm(outputs)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        inner = normed(self._bn0, self._expand_conv(x), then="relu6") if self.expands else x
        inner = normed(self._bn1, self._depthwise_conv(inner), then="relu6")
        return normed(self._bn2, self._project_conv(inner), x if self.shortcut else None)


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow pads even sides ("same"): where the zeros cannot be shared out evenly, which
    is when it strides, one more lies at the right and at the bottom."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        zeros = kernel - stride
        super().__init__(inputs, outputs, kernel, stride=stride, padding=zeros // 2, bias=False)
        self.odd = zeros % 2

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_evened(x, self.odd))


class SameDepthwise2d(Depthwise2d):
    """Likewise, each channel by itself."""

    def __init__(self, channels: int, kernel: int, stride: int) -> None:
        zeros = kernel - stride
        super().__init__(channels, kernel, stride, zeros // 2)
        self.odd = zeros % 2

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_evened(x, self.odd))


def _evened(x: Tensor, odd: int) -> Tensor:
    return nn.functional.pad(x, (0, odd, 0, odd)) if odd else x


def _norm(channels: int) -> nn.BatchNorm2d:
    # The package's momentum of .01 is for long training: after a client's few dozen steps, statistics of before would
    # still weigh as much as those of its own images.
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.1)
