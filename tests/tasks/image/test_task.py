"""The image task and contrasts: what is looked at, what is not, and servers that study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedreel.api import run
from fedreel.config import DataConfig, TrainConfig
from fedreel.core.optim import make_optimizer
from fedreel.core.server_training import FullBatches
from fedreel.core.task import Tensors
from fedreel.core.training import fit
from fedreel.errors import DataError, RecipeError
from fedreel.models.backbone import Images
from fedreel.models.efficientnet import EfficientNetLite0Config
from fedreel.models.resnet import ResNet10Config
from fedreel.runs.reading import read_metrics
from fedreel.tasks.image.population import TestPictures as Shared
from fedreel.tasks.image.task import Image
from fedreel.tasks.recognition.task import Recognition
from support.networks import small_r3d
from support.pictures import pictures
from support.tiny import videos

TINY_RESNET = ResNet10Config(width=2, small_stem=True)
TINY: dict[str, Any] = {
    "task.classes": 2,
    "task.backbone": {"name": "resnet10", "width": 2, "small_stem": True},
    "task.size": 16,
    "task.embedding": 4,
    "train.epochs": 1,
    "round.rounds": 2,
    "round.evaluate_every": 1,
    "device": "cpu",
}


def test_accuracy_under_the_clients_own_distribution_by_hand() -> None:
    """Four test images, two of each class; the client has three times as many of class 0. Right: both of class 0."""

    class Always0(nn.Module):
        def features_and_logits(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = torch.tensor([[1.0, 0.0]]).expand(len(x), 2)
            return logits, logits

    labels = torch.tensor([0, 0, 1, 1])
    test = Shared(torch.zeros(4, 16, 16, 3, dtype=torch.uint8), labels, torch.tensor([1.5, 1.5, 0.5, 0.5]))
    found = Image(classes=2, size=16, backbone=TINY_RESNET).evaluate(Always0(), test, 3)
    assert found["top1"] == pytest.approx(0.5)
    assert found["top1_own"] == pytest.approx(0.75)
    assert found["n"] == 4


@torch.no_grad()
def test_clients_that_test_one_model_look_at_the_common_images_once() -> None:
    """Each by its own weights all the same; another model, or the same one after a step, is asked anew."""
    torch.manual_seed(0)
    task = Image(classes=2, size=16, backbone=TINY_RESNET)
    images, labels = torch.randint(256, (6, 16, 16, 3), dtype=torch.uint8), torch.tensor([0, 1, 0, 1, 1, 1])
    common = Shared(images, labels, torch.ones(6))
    clients = [replace(common, weights=torch.rand(6)) for _ in range(3)]
    model, other = task.model().eval(), task.model().eval()
    seen: list[int] = []
    for one in (model, other):
        one.backbone.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))  # type: ignore[union-attr]

    def told(model: nn.Module) -> list[dict[str, float]]:
        return [task.evaluate(model, client, 4) for client in clients]

    def alone(model: nn.Module) -> list[dict[str, float]]:
        return [task.evaluate(model, Shared(images, labels, client.weights), 4) for client in clients]

    for asked in (model, other, model):
        assert told(asked) == told(asked) == alone(asked)
    next(iter(model.backbone.parameters())).mul_(-3.0)  # type: ignore[union-attr]
    assert told(model) == alone(model)
    assert sum(seen) == 4 * 6 + 4 * 3 * 6


@pytest.mark.parametrize("kind", ["image", "recognition"])
def test_learning_from_views_looks_at_no_label(kind: str) -> None:
    """Training with other labels ends with the same bits."""
    torch.manual_seed(0)
    if kind == "image":
        task: Any = Image(classes=2, backbone=TINY_RESNET, size=16, embedding=4, objective="views")
        samples = torch.randint(256, (8, 16, 16, 3), dtype=torch.uint8)
    else:
        task = Recognition(classes=2, backbone=small_r3d(), size=16, frames=4, embedding=4, objective="views")
        samples = torch.randint(256, (8, 4, 16, 16, 3), dtype=torch.uint8)
    ends = []
    for labels in (torch.zeros(8, dtype=torch.long), torch.arange(8) % 2):
        torch.manual_seed(1)
        model = task.model()
        config = TrainConfig(batch_size=4, lr=0.1)
        optimizer = make_optimizer(model.parameters(), config)
        generator = torch.Generator().manual_seed(0)
        before = {n: t.clone() for n, t in model.state_dict().items()}
        fit(model, task, Tensors((samples, labels)), optimizer, config, epochs=1, generator=generator)
        assert any(not torch.equal(before[n], t) for n, t in model.state_dict().items())
        ends.append(model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_raw_anchor_is_the_image_itself() -> None:
    images = torch.randint(256, (3, 16, 16, 3), dtype=torch.uint8)
    task = Image(size=16, backbone=TINY_RESNET, objective="views", anchor="raw")
    (seen,) = task.augment((images, torch.zeros(3)))
    assert torch.equal(seen[:3], images.float())
    assert not torch.equal(seen[3:], images.float())


def test_a_contrast_always_has_as_many_negatives() -> None:
    rows = Tensors((torch.arange(10.0),))
    assert [len(b[0]) for b in FullBatches(rows).batches(4)] == [4, 4]
    assert [len(b[0]) for b in FullBatches(Tensors((torch.arange(9.0),))).batches(4)] == [4, 4]
    assert [len(b[0]) for b in FullBatches(Tensors((torch.arange(3.0),))).batches(4)] == [3]


def test_a_supervised_server_needs_labels() -> None:
    unlabelled = Tensors((torch.zeros(4, 16, 16, 3, dtype=torch.uint8), torch.full((4,), -1)))
    with pytest.raises(DataError, match="no labels to learn"):
        Image(size=16, backbone=TINY_RESNET).server_objective("labels", unlabelled, 1.0)


def test_a_share_of_the_servers_labels_lies_within_a_larger_one() -> None:
    labels = torch.arange(40) % 4
    samples = torch.arange(40, dtype=torch.uint8)[:, None, None, None].expand(40, 16, 16, 3).contiguous()
    task = Image(size=16, backbone=TINY_RESNET)
    shares = []
    for share in (0.2, 0.4, 1.0):
        subject = task.server_objective("labels", Tensors((samples, labels)), share)
        shares.append({int(x) for x in subject.examples.tensors[0][:, 0, 0, 0]})  # type: ignore[attr-defined]
    assert [len(s) for s in shares] == [8, 16, 40]
    assert shares[0] < shares[1] < shares[2]


def test_fedsimclr_refuses_a_task_that_learns_labels(tmp_path: Path) -> None:
    source = pictures(tmp_path / "pictures")
    settings = {**TINY, "data.source": source, "method.name": "fedsimclr", "server": None}
    with pytest.raises(RecipeError, match="learns from views"):
        run("fedlid", tmp_path / "run", set=settings, quiet=True)


@pytest.mark.slow
@pytest.mark.parametrize("study", ["views", "labels", "none"])
def test_a_run_of_fedlid_on_a_folder_of_pictures(tmp_path: Path, study: str) -> None:
    source = pictures(tmp_path / "pictures")
    settings = {**TINY, "data.source": source, "data.public": source, "method.server": study}
    out = run("fedlid", tmp_path / "run", set=settings, quiet=True).path
    for phase in ("trained", "averaged", "test"):
        rows = list(read_metrics(out, phase))
        assert [row["round"] for row in rows] == [1, 2]
        assert all(0 <= row["metrics"]["top1"] <= 1 for row in rows)
    assert len(list(read_metrics(out, "server"))) == (0 if study == "none" else 2)


@pytest.mark.slow
def test_clips_can_be_studied_as_pictures_can(tmp_path: Path) -> None:
    source = videos(tmp_path / "videos", clips=4)
    settings = {
        "task.classes": 2,
        "task.backbone.width": 2,
        "task.size": 16,
        "task.frames": 4,
        "task.differences": False,
        "task.embedding": 4,
        "method.name": "fedlid",
        "data.source": source,
        "data.public": source,
        "round.rounds": 1,
        "device": "cpu",
    }
    out = run("recognition", tmp_path / "run", set=settings, quiet=True).path
    assert [row["what"] for row in read_metrics(out, "server")] == ["views"]


# what a network is given


def test_a_backbone_says_on_which_scale_it_wants_colours() -> None:
    """EfficientNet-Lite's weights want bytes as (x - 127) / 128, torchvision's ImageNet's mean and deviation."""
    image = torch.tensor([0, 127, 255], dtype=torch.uint8).expand(1, 8, 8, 3)
    lite = Image(size=8, backbone=EfficientNetLite0Config()).network_input(image)[0, :, 0, 0]
    torch.testing.assert_close(lite, torch.tensor([-127 / 128, 0.0, 1.0]), atol=1e-6, rtol=0)
    resnet = Image(size=8, backbone=TINY_RESNET).network_input(image)[0, :, 0, 0]
    by_hand = torch.tensor([-0.485 / 0.229, (127 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    torch.testing.assert_close(resnet, by_hand)
    assert Image(backbone=EfficientNetLite0Config()).card()["input"]["mean"] == (127 / 255,) * 3


def test_the_published_stem_knows_the_scale_of_its_images() -> None:
    """Its running variance is that of ImageNet's images on the right scale: on torchvision's, pixels are spread more
    than twice as far, and so is what the stem makes of them."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(0, 1, (24, 3, 8, 8)) + rng.uniform(-0.4, 0.4, (24, 3, 1, 1))  # smooth, as photographs are
    smooth = nn.functional.interpolate(torch.from_numpy(coarse).float(), (96, 96), mode="bicubic").clamp(0, 1)
    images = (smooth * 255).round().byte().permute(0, 2, 3, 1)
    spread = {}
    for name, backbone in (("lite", EfficientNetLite0Config(init="imagenet")), ("torchvision", TINY_RESNET)):
        net = EfficientNetLite0Config(init="imagenet").network(Images(96))
        with torch.no_grad():
            maps = net._conv_stem(Image(size=96, backbone=backbone).network_input(images))
        spread[name] = float((maps.var(dim=(0, 2, 3)) / net._bn0.running_var).nanmedian())  # some are 0
    assert spread["torchvision"] / spread["lite"] == pytest.approx((128 / 255 / 0.226) ** 2, rel=0.15)
    assert abs(np.log(spread["lite"])) < abs(np.log(spread["torchvision"]))


def test_the_servers_images_may_be_larger_than_the_networks_input(tmp_path: Path) -> None:
    source = pictures(tmp_path / "pictures")
    task = Image(size=8, server_size=16, backbone=TINY_RESNET, objective="views", anchor="raw", embedding=4)
    own = task.public(DataConfig(source=str(source), public=str(source)), 0)
    images, labels = own.tensors
    assert images.shape[1:] == (16, 16, 3)
    assert task.augment((images, labels))[0].shape == (2 * len(images), 8, 8, 3)
    assert task.labelled_view(images).shape == (len(images), 8, 8, 3)
    assert task.network_input(images).shape == (len(images), 3, 8, 8)
    assert task.population(DataConfig(source=str(source)), 0).data("owner0").train.tensors[0].shape[1:] == (8, 8, 3)  # type: ignore[attr-defined]


def test_padding_is_a_share_of_the_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 of 32 pixels, 28 of 224: no image is shifted farther, and some are as far."""
    for size, most in ((32, 4), (224, 28)):
        images = torch.full((300, size, size, 3), 255, dtype=torch.uint8)
        seen = Image(size=size, backbone=TINY_RESNET).labelled_view(images)
        black = (seen[:, :, size // 2, 0] == 0).sum(1)
        assert int(black.max()) == most
    with pytest.raises(RecipeError, match="padding"):
        Image(padding=4)


def test_views_are_cut_from_at_least_the_share_that_is_asked_for() -> None:
    assert Image(crop_scale=0.3, backbone=TINY_RESNET).views.scale == (0.3, 1.0)
    assert Recognition(crop_scale=0.3, backbone=small_r3d()).views.scale == (0.3, 1.0)
    with pytest.raises(RecipeError, match="crop_scale"):
        Image(crop_scale=0.0)
