"""What a frozen network sees of pictures is computed once, for tests too, and gives what computing it anew gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedreel.core.task import Tensors
from fedreel.models.classifier import Classifier
from fedreel.models.resnet import ResNet, ResNet10Config
from fedreel.tasks.image.population import TestPictures as Shared
from fedreel.tasks.image.task import Image

PICTURES = torch.randint(0, 255, (3, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 0])
TASK = Image(classes=2, size=16, padding=0.0, flip=0.0, backbone=ResNet10Config(width=2, small_stem=True, tune="head"))


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pictures that the network looked at, one number for every look; the cache is empty."""
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path))
    found: list[int] = []
    features = ResNet.features

    def counted(self: ResNet, x: torch.Tensor) -> torch.Tensor:
        found.append(len(x))
        return features(self, x)

    monkeypatch.setattr(ResNet, "features", counted)
    return found


def model_of(task: Image) -> Classifier:
    torch.manual_seed(0)
    model = task.model()
    assert isinstance(model, Classifier)
    return model


def test_answers_are_those_of_the_pictures_and_a_second_look_is_read(looks: list[int]) -> None:
    model = model_of(TASK)
    seen = TASK.prepared(model, Tensors((PICTURES, LABELS)), training=True)
    assert looks == [1, 1, 1]
    TASK.prepared(model_of(TASK), Tensors((PICTURES, LABELS)), training=True)
    assert looks == [1, 1, 1]
    (batch,) = seen.batches(8)
    assert TASK.augment(batch) is batch
    assert torch.equal(TASK.look_of(batch), TASK.look_of((PICTURES, LABELS)))
    model.eval()
    with torch.no_grad():
        assert torch.allclose(TASK.forward(model, batch).logits, TASK.forward(model, (PICTURES,)).logits, atol=1e-6)


def test_test_pictures_are_looked_at_once_for_all_who_share_them(looks: list[int]) -> None:
    """And the metrics are those of the pictures."""
    model = model_of(TASK)
    common = Shared(PICTURES, LABELS, torch.tensor([2.0, 0.0, 1.0]))
    prepared = TASK.prepared(model, common, training=False)
    other = TASK.prepared(model, replace(common, weights=torch.ones(3), turn=(1, 2)), training=False)
    assert looks == [1, 1, 1]
    assert isinstance(prepared, Shared)
    assert isinstance(other, Shared)
    assert prepared.images is other.images
    assert [len(rows) for rows in other.own.tensors] == [1, 1, 1]
    model.eval()
    with torch.no_grad():
        assert TASK.evaluate(model, prepared, 2) == pytest.approx(TASK.evaluate(model, common, 2), abs=1e-6)


@pytest.mark.parametrize("other", [{"flip": 0.5}, {"padding": 0.1}])
def test_pictures_that_are_seen_in_random_views_stay_pictures(looks: list[int], other: dict[str, float]) -> None:
    task, pictures = replace(TASK, **other), Tensors((PICTURES, LABELS))  # type: ignore[arg-type]
    assert task.prepared(model_of(task), pictures, training=True) is pictures
    assert not looks
    assert task.prepared(model_of(task), pictures, training=False) is not pictures
