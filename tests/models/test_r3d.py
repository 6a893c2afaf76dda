"""R3D against torchvision's published layout, and small cases worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedreel.errors import DataError
from fedreel.models.classifier import Classifier, export_torchvision
from fedreel.models.pretrained import load_weights
from fedreel.models.r3d import R3D, BasicBlock, BatchNorm, R3DConfig
from support.networks import tiny_r3d

BN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def published_names() -> list[str]:
    """The names in torchvision's r3d_18 file, in its order."""

    def conv_bn(prefix: str) -> list[str]:
        return [f"{prefix}.0.weight", *(f"{prefix}.1.{name}" for name in BN)]

    names = conv_bn("stem")
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            at = f"layer{stage}.{block}"
            names += conv_bn(f"{at}.conv1") + conv_bn(f"{at}.conv2")
            names += conv_bn(f"{at}.downsample") if stage > 1 and block == 0 else []
    return [*names, "fc.weight", "fc.bias"]


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_names_and_size_are_those_of_the_published_weights() -> None:
    with torch.device("meta"):
        backbone, fc = R3D(R3DConfig()), nn.Linear(512, 400)
    assert list(export_torchvision(backbone, fc)) == published_names()
    assert count(backbone) + count(fc) == 33_371_472


@pytest.mark.parametrize(("last_stride", "side"), [(2, 7), (1, 14)])
def test_map_of_a_paper_sized_clip(last_stride: int, side: int) -> None:
    with torch.device("meta"):
        backbone = R3D(R3DConfig())
        assert backbone.last_stride == 2
        backbone.last_stride = last_stride
        clip = torch.empty(2, 3, 16, 112, 112)
    assert backbone.features(clip).shape == (2, 512, 2, side, side)
    assert backbone(clip).shape == (2, backbone.out_channels) == (2, 512)


def test_stem_stride_and_width_shape_a_tiny_network() -> None:
    backbone = tiny_r3d(width=4, stem_stride=(1, 1, 1))
    assert backbone.features(torch.zeros(1, 3, 8, 16, 16)).shape == (1, 32, 1, 2, 2)
    assert len(backbone.layer1) == len(backbone.layer4) == 1


def test_stage_4_variant_shares_weights_and_agrees_where_it_samples_the_same_places() -> None:
    torch.manual_seed(0)
    strided, fine = tiny_r3d(width=4).eval(), tiny_r3d(width=4).eval()
    fine.last_stride = 1
    load_weights(fine, export_torchvision(strided))
    clip = torch.randn(1, 3, 8, 32, 32)
    # Up to the first convolution of stage 4, the fine map at even places is the strided map.
    before = strided.layer3(strided.layer2(strided.layer1(strided.stem(clip))))
    torch.testing.assert_close(fine.layer4[0].conv1(before)[..., ::2, ::2], strided.layer4[0].conv1(before))
    assert fine.features(clip).shape[-1] == 2 * strided.features(clip).shape[-1]


def test_forward_is_the_mean_of_the_feature_map() -> None:
    torch.manual_seed(0)
    backbone = tiny_r3d(width=4).eval()
    clip = torch.randn(2, 3, 8, 32, 32)
    torch.testing.assert_close(backbone(clip), backbone.features(clip).mean(dim=(2, 3, 4)))


def test_a_block_whose_second_convolution_is_zero_passes_its_rectified_input() -> None:
    block = BasicBlock(3, 3, (1, 1, 1), 1e-5).eval()
    nn.init.zeros_(block.conv2[0].weight)
    x = torch.randn(2, 3, 4, 5, 5)
    assert torch.equal(block(x), x.clamp(min=0))
    assert block.downsample is None


def test_shortcut_of_a_shrinking_block_takes_every_second_place() -> None:
    block = BasicBlock(1, 2, (2, 2, 2), bn_eps=0.0).eval()
    nn.init.zeros_(block.conv2[0].weight)
    block.downsample[0].weight.data = torch.tensor([2.0, -1.0]).view(2, 1, 1, 1, 1)
    x = torch.rand(1, 1, 4, 6, 6)
    expected = torch.cat([2 * x[:, :, ::2, ::2, ::2], torch.zeros(1, 1, 2, 3, 3)], dim=1)
    torch.testing.assert_close(block(x), expected)


def test_batch_norm_eps_reaches_every_norm_and_enters_as_in_the_formula() -> None:
    backbone = tiny_r3d(width=2, bn_eps=1e-3)
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm3d)]
    assert len(norms) == 12  # stem, two a block, one for each of three shortcuts
    assert {m.eps for m in norms} == {1e-3}
    norm = norms[0].eval()
    norm.running_var.fill_(0.003)
    x = torch.randn(1, 2, 1, 2, 2)
    torch.testing.assert_close(norm(x), x / 0.004**0.5)


def test_initialisation_is_kaiming_fan_out_with_unit_norms() -> None:
    torch.manual_seed(0)
    backbone = tiny_r3d(width=32)
    weight = backbone.layer3[0].conv1[0].weight  # 64 inputs, 128 outputs
    assert weight.std().item() == pytest.approx((2 / (128 * 27)) ** 0.5, rel=0.01)
    assert all(torch.all(m.weight == 1) for m in backbone.modules() if isinstance(m, nn.BatchNorm3d))


def test_published_weights_round_trip_without_their_classifier() -> None:
    torch.manual_seed(0)
    model = Classifier(tiny_r3d(width=4), num_classes=5).eval()
    model.backbone.stem[1].running_mean.normal_()
    file = export_torchvision(model.backbone, model.head.fc)
    assert {"fc.weight", "fc.bias"} < set(file)
    again = tiny_r3d(width=4).eval()
    load_weights(again, file)
    clip = torch.randn(1, 3, 8, 32, 32)
    assert torch.equal(again(clip), model.backbone(clip))
    file["stem.0.weight"].zero_()
    assert model.backbone.stem[0].weight.abs().sum() > 0, "the export must be a copy"


def test_files_without_batch_counters_load() -> None:
    source, target = tiny_r3d(width=2), tiny_r3d(width=2)
    file = {n: t for n, t in export_torchvision(source).items() if not n.endswith("num_batches_tracked")}
    load_weights(target, file)
    assert torch.equal(target.layer4[0].conv2[0].weight, source.layer4[0].conv2[0].weight)


def test_wrong_weights_are_named_one_by_one_and_nothing_is_loaded() -> None:
    file = export_torchvision(tiny_r3d(width=2))
    del file["layer2.0.conv1.0.weight"]
    file["layer1.7.conv1.0.weight"] = torch.zeros(1)
    file["stem.1.bias"] = torch.zeros(9)
    target = tiny_r3d(width=2)
    before = export_torchvision(target)
    with pytest.raises(DataError) as error:
        load_weights(target, file)
    assert error.value.found == (
        "missing: layer2.0.conv1.0.weight; unexpected: layer1.7.conv1.0.weight; "
        "of another shape: stem.1.bias (9,) instead of (2,)"
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in target.state_dict().items())


def test_classifier_names_tell_backbone_from_head_and_logits_are_linear() -> None:
    torch.manual_seed(0)
    model = Classifier(tiny_r3d(width=2), num_classes=3, dropout=0.5).eval()
    assert {name.split(".")[0] for name in model.state_dict()} == {"backbone", "head"}
    assert [n for n in model.state_dict() if n.startswith("head.")] == ["head.fc.weight", "head.fc.bias"]
    clip = torch.randn(2, 3, 8, 16, 16)
    expected = model.backbone(clip) @ model.head.fc.weight.T + model.head.fc.bias
    torch.testing.assert_close(model(clip), expected)


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    model = Classifier(tiny_r3d(width=2), num_classes=3, dropout=0.5)
    model.backbone.eval()
    clip = torch.randn(1, 3, 8, 16, 16)
    assert not torch.equal(model(clip), model(clip))
    model.eval()
    assert torch.equal(model(clip), model(clip))


def test_a_step_of_training_moves_every_parameter() -> None:
    torch.manual_seed(0)
    model = Classifier(tiny_r3d(width=4), num_classes=3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 32, 32)), torch.tensor([0, 1, 2, 0]))
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert [n for n, p in model.named_parameters() if torch.equal(p, before[n])] == []


def test_batch_norm_of_frames_as_one_tall_image_is_that_of_clips() -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(4), nn.BatchNorm3d(4)
    x = (3 * torch.randn(2, 4, 3, 5, 6) + 1).contiguous(memory_format=torch.channels_last_3d)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, wanted = ours.of_tall(a), theirs(b)
    weights = torch.randn_like(wanted)
    (got * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert got.stride() == x.stride()  # the next convolution finds channels together too
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(a.grad, b.grad)
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor)
    assert not torch.equal(ours.running_mean, torch.zeros(4))
