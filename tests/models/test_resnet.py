"""Image ResNets against torchvision's published layout, and small cases worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedreel.errors import DataError
from fedreel.models.classifier import Classifier, export_torchvision
from fedreel.models.pretrained import load_weights
from fedreel.models.resnet import (
    BasicBlock,
    Bottleneck,
    ResNet,
    ResNet18Config,
    ResNet34Config,
    ResNet50Config,
    ResNetConfig,
)

BN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def published_names(blocks: tuple[int, ...], convs: int) -> list[str]:
    """The names in torchvision's files, in their order."""

    def conv_bn(conv: str, bn: str) -> list[str]:
        return [f"{conv}.weight", *(f"{bn}.{name}" for name in BN)]

    names = conv_bn("conv1", "bn1")
    for stage, number in enumerate(blocks, start=1):
        for block in range(number):
            at = f"layer{stage}.{block}"
            for i in range(1, convs + 1):
                names += conv_bn(f"{at}.conv{i}", f"{at}.bn{i}")
            if block == 0 and (stage > 1 or convs == 3):
                names += conv_bn(f"{at}.downsample.0", f"{at}.downsample.1")
    return [*names, "fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("config", "blocks", "convs", "parameters"),
    [
        (ResNet18Config, (2, 2, 2, 2), 2, 11_689_512),
        (ResNet34Config, (3, 4, 6, 3), 2, 21_797_672),
        (ResNet50Config, (3, 4, 6, 3), 3, 25_557_032),
    ],
)
def test_names_and_sizes_are_those_of_the_published_weights(
    config: type[ResNetConfig], blocks: tuple[int, ...], convs: int, parameters: int
) -> None:
    with torch.device("meta"):
        backbone = ResNet(config())
        fc = nn.Linear(backbone.out_channels, 1000)
    assert list(export_torchvision(backbone, fc)) == published_names(blocks, convs)
    assert sum(p.numel() for m in (backbone, fc) for p in m.parameters()) == parameters


@pytest.mark.parametrize(
    ("config", "small_stem", "pixels", "shape"),
    [
        (ResNet18Config, False, 224, (512, 7, 7)),
        (ResNet50Config, False, 224, (2048, 7, 7)),
        (ResNet18Config, True, 32, (512, 4, 4)),
        (ResNet50Config, True, 32, (2048, 4, 4)),
    ],
)
def test_map_sizes(config: type[ResNetConfig], small_stem: bool, pixels: int, shape: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        backbone = ResNet(config(small_stem=small_stem))
        images = torch.empty(2, 3, pixels, pixels)
    assert backbone.features(images).shape == (2, *shape)
    assert backbone(images).shape == (2, backbone.out_channels) == (2, shape[0])


def test_width_scales_all_stages() -> None:
    backbone = ResNet(ResNet18Config(width=4, small_stem=True))
    assert [backbone.get_submodule(f"layer{i}.1.conv2").out_channels for i in (1, 2, 3, 4)] == [4, 8, 16, 32]
    assert backbone.out_channels == 32
    assert ResNet(ResNet50Config(width=4)).out_channels == 128


def test_a_block_whose_last_convolution_is_zero_passes_its_rectified_input() -> None:
    x = torch.randn(2, 8, 5, 5)
    for block, last in ((BasicBlock(8, 8, 1), "conv2"), (Bottleneck(8, 2, 1), "conv3")):
        nn.init.zeros_(block.get_submodule(last).weight)
        assert torch.equal(block.eval()(x), x.clamp(min=0))


def test_bottleneck_strides_at_its_middle_convolution() -> None:
    block = Bottleneck(8, 4, 2)
    assert [c.stride for c in (block.conv1, block.conv2, block.conv3)] == [(1, 1), (2, 2), (1, 1)]


def test_small_stem_sees_a_single_pixel_in_a_3x3_window() -> None:
    backbone = ResNet(ResNet18Config(width=2, small_stem=True)).eval()
    image = torch.zeros(1, 3, 9, 9)
    image[0, :, 4, 4] = 1
    stem = backbone.maxpool(backbone.conv1(image))
    assert stem.shape == (1, 2, 9, 9)
    rows, columns = torch.nonzero(stem.abs().sum(dim=(0, 1)), as_tuple=True)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (3, 5, 3, 5)


def test_weights_round_trip_and_a_small_stem_refuses_the_large_one() -> None:
    torch.manual_seed(0)
    source, target = ResNet(ResNet18Config(width=4)).eval(), ResNet(ResNet18Config(width=4)).eval()
    load_weights(target, export_torchvision(source, nn.Linear(32, 7)))
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(source(x), target(x))
    with pytest.raises(DataError, match=r"conv1.weight \(4, 3, 7, 7\) instead of \(4, 3, 3, 3\)"):
        load_weights(ResNet(ResNet18Config(width=4, small_stem=True)), export_torchvision(source))


def test_a_classifier_learns_to_tell_bright_from_dark() -> None:
    torch.manual_seed(0)
    model = Classifier(ResNet(ResNet18Config(width=4, small_stem=True)), num_classes=2)
    labels = torch.arange(16) % 2
    images = torch.randn(16, 3, 16, 16) + 2.0 * (labels * 2 - 1).view(-1, 1, 1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(15):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert torch.equal(model(images).argmax(1), labels)
