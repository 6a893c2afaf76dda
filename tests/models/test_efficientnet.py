"""EfficientNet-Lite0 against the package whose weights it takes, and small cases worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedreel.errors import RecipeError
from fedreel.models.backbone import Images
from fedreel.models.classifier import Classifier
from fedreel.models.efficientnet import Block, EfficientNetLite0, EfficientNetLite0Config, SameConv2d
from fedreel.models.pretrained import load_pretrained


def test_it_computes_what_the_package_does_with_the_published_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="needs the package of that name")
    torch.manual_seed(0)
    ours = EfficientNetLite0()
    load_pretrained(ours, "imagenet")
    theirs = package.EfficientNet.from_name("efficientnet-lite0", drop_connect_rate=0.0)
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # theirs is for longer training
    theirs.load_state_dict({**theirs.state_dict(), **ours.state_dict()})
    assert [*ours.state_dict(), "_fc.weight", "_fc.bias"] == list(theirs.state_dict())
    images = torch.randn(2, 3, 224, 224)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)  # for theirs, too: other kernels round differently
    with torch.no_grad():
        for training in (False, True):  # training also moves the running statistics, which are compared below
            found, expected = ours.train(training).features(images), theirs.train(training).extract_features(images)
            assert found.shape == (2, 1280, 7, 7)
            torch.testing.assert_close(found, expected)
            assert expected.std() > 0.1
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, theirs.state_dict()[name], msg=name)


def test_its_size_is_the_published_one() -> None:
    with torch.device("meta"):
        backbone, fc = EfficientNetLite0(), nn.Linear(1280, 1000)
    assert sum(p.numel() for m in (backbone, fc) for p in m.parameters()) == 4_652_008


@pytest.mark.parametrize(
    ("small_stem", "pixels", "side"), [(False, 224, 7), (False, 64, 2), (False, 32, 1), (True, 64, 8), (True, 32, 4)]
)
def test_map_sizes(small_stem: bool, pixels: int, side: int) -> None:
    with torch.device("meta"):
        backbone = EfficientNetLite0(small_stem=small_stem)
        images = torch.empty(2, 3, pixels, pixels)
    assert backbone.features(images).shape == (2, 1280, side, side)
    assert backbone(images).shape == (2, backbone.out_channels) == (2, 1280)


def test_a_small_stem_has_the_same_tensors_and_agrees_where_both_look() -> None:
    torch.manual_seed(0)
    large, small = EfficientNetLite0().eval(), EfficientNetLite0(small_stem=True).eval()
    small.load_state_dict(large.state_dict())
    x = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(small._conv_stem(x)[:, :, 1::2, 1::2], large._conv_stem(x))
    x = torch.randn(1, 16, 8, 8)
    torch.testing.assert_close(small._blocks[1](x)[:, :, 1::2, 1::2], large._blocks[1](x))


@pytest.mark.parametrize(
    ("kernel", "stride", "windows"),
    [
        (3, 2, [[0, 1, 2], [2, 3, 4], [4, 5]]),  # TensorFlow's "same": the odd zero comes last
        (5, 2, [[0, 1, 2, 3], [1, 2, 3, 4, 5], [3, 4, 5]]),
        (3, 1, [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5]]),
        (1, 1, [[0], [1], [2], [3], [4], [5]]),
    ],
)
def test_windows_of_a_side_of_six(kernel: int, stride: int, windows: list[list[int]]) -> None:
    conv = SameConv2d(1, 1, kernel, stride)
    nn.init.ones_(conv.weight)
    for pixel in range(6):
        row = torch.zeros(1, 1, 6, 6)
        row[:, :, pixel, :] = 1
        seen = conv(row)[0, 0].amax(1) > 0
        assert seen.tolist() == [pixel in window for window in windows]
        assert torch.equal(conv(row.mT), conv(row).mT)


def test_a_block_whose_last_convolution_is_zero_passes_its_input_or_nothing() -> None:
    x = torch.randn(2, 8, 6, 6)
    for outputs, stride, expected in ((8, 1, x), (12, 1, torch.zeros(2, 12, 6, 6)), (8, 2, torch.zeros(2, 8, 3, 3))):
        block = Block(8, outputs, 3, stride, 6).eval()
        nn.init.zeros_(block._project_conv.weight)
        assert torch.equal(block(x), expected)


def test_values_are_cut_at_six() -> None:
    backbone = EfficientNetLite0(small_stem=True).eval()
    nn.init.constant_(backbone._bn1.bias, 100.0)
    assert torch.equal(backbone(torch.randn(1, 3, 16, 16)), torch.full((1, 1280), 6.0))


def test_running_statistics_follow_a_short_training() -> None:
    backbone = EfficientNetLite0(small_stem=True)
    nn.init.zeros_(backbone._conv_stem.weight)
    backbone(torch.randn(2, 3, 16, 16))
    torch.testing.assert_close(backbone._bn0.running_var, torch.full((32,), 0.9))


def test_new_weights_keep_the_scale_of_what_they_see() -> None:
    torch.manual_seed(0)
    backbone = EfficientNetLite0()
    for i, reached in ((11, 5 * 5), (15, 3 * 3)):  # a depthwise input reaches as many outputs as the kernel is large
        assert backbone._blocks[i]._depthwise_conv.weight.std().item() == pytest.approx((2 / reached) ** 0.5, rel=0.05)
    assert backbone._conv_head.weight.std().item() == pytest.approx((2 / 1280) ** 0.5, rel=0.05)


@pytest.mark.slow
def test_a_classifier_learns_to_tell_bright_from_dark() -> None:
    torch.manual_seed(0)
    model = Classifier(EfficientNetLite0(small_stem=True), num_classes=2)
    labels = torch.arange(16) % 2
    images = torch.randn(16, 3, 8, 8) + 4.0 * (labels * 2 - 1).view(-1, 1, 1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with torch.backends.mkldnn.flags(enabled=True):  # depthwise convolutions are slow without it
        for _ in range(12):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        assert torch.equal(model(images).argmax(1), labels)


def test_a_network_of_fewer_stages_is_the_beginning_of_the_whole_one() -> None:
    config = EfficientNetLite0Config(init="imagenet")
    whole, part = (c.network(Images(64)).eval() for c in (config, replace(config, stages=5)))
    seen: list[torch.Tensor] = []
    whole._blocks[10].register_forward_hook(lambda *args: seen.append(args[-1]))  # 1 + 2 + 2 + 3 + 3 blocks
    pictures = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        whole(pictures)
        found = part.features(pictures)
    assert found.shape == (2, part.out_channels, 4, 4) == (2, 112, 4, 4)
    assert torch.equal(found, seen[0])
    assert part.state_dict().keys() < whole.state_dict().keys()
    with pytest.raises(RecipeError, match="stages"):
        EfficientNetLite0Config(stages=8)
