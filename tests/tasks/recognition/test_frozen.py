"""Features of a frozen backbone are computed once, kept on disk, and give what computing them anew gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.core.task import Tensors
from fedreel.errors import RecipeError
from fedreel.machine.cache import cache_folder
from fedreel.models.classifier import Classifier
from fedreel.models.frames import Frames, FramesConfig
from fedreel.models.resnet import ResNet10Config
from fedreel.runs.run import load
from fedreel.tasks.recognition.task import Recognition
from fedreel.tasks.vision.frozen import AnyView
from support.tiny import SETTINGS, cli, sets

FROZEN = FramesConfig(image=ResNet10Config(width=2, small_stem=True), tune="head")
CLIPS = torch.randint(0, 255, (3, 2, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 0])


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREEL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Clips that the backbone looked at, one number for every look."""
    found: list[int] = []
    features = Frames.features

    def counted(self: Frames, x: torch.Tensor) -> torch.Tensor:
        found.append(len(x))
        return features(self, x)

    monkeypatch.setattr(Frames, "features", counted)
    return found


def made(**settings: Any) -> tuple[Recognition, Classifier]:
    task = Recognition(**{"classes": 2, "frames": 2, "size": 16, "head": "motion", "backbone": FROZEN, **settings})
    torch.manual_seed(0)
    model = task.model()
    assert isinstance(model, Classifier)
    return task, model  # as a client's worker has it first: in training mode


def test_answers_are_those_of_the_clips_and_a_second_look_is_read(looked: list[int]) -> None:
    task, model = made()
    clips = Tensors((CLIPS, LABELS))
    first = task.prepared(model, clips, training=False)
    assert looked == [1, 1, 1]
    again = task.prepared(model, clips, training=True)
    assert looked == [1, 1, 1]
    assert isinstance(first, Tensors)
    assert isinstance(again, Tensors)
    assert torch.equal(first.tensors[0], again.tensors[0])
    assert torch.equal(first.tensors[1], LABELS)
    model.eval()
    with torch.no_grad():
        (batch,) = first.batches(8)
        assert torch.allclose(task.forward(model, batch).logits, task.forward(model, (CLIPS,)).logits, atol=1e-6)
    assert task.augment(batch) is batch


@pytest.mark.parametrize("other", [{"head": "linear"}, {"differences": True}])
def test_another_transform_is_another_file(looked: list[int], other: dict[str, Any]) -> None:
    task, model = made()
    task.prepared(model, Tensors((CLIPS, LABELS)), training=False)
    task, model = made(**other)
    task.prepared(model, Tensors((CLIPS, LABELS)), training=False)
    assert len(looked) == 6


def test_other_weights_or_one_other_pixel_is_another_file(looked: list[int]) -> None:
    task, model = made()
    task.prepared(model, Tensors((CLIPS, LABELS)), training=False)
    pixel = CLIPS.clone()
    pixel[1, 0, 0, 0, 0] += 1
    task.prepared(model, Tensors((pixel, LABELS)), training=False)
    assert len(looked) == 4
    with torch.no_grad():
        next(model.backbone.parameters())[0] += 1e-3
    task.prepared(model, Tensors((CLIPS, LABELS)), training=False)
    assert len(looked) == 7


def test_a_damaged_file_is_made_anew(looked: list[int]) -> None:
    task, model = made()
    before = task.prepared(model, Tensors((CLIPS, LABELS)), training=False)
    file = next((cache_folder() / "features" / "clips").rglob("*.npy"))
    file.write_bytes(file.read_bytes()[:-5])
    after = task.prepared(model, Tensors((CLIPS, LABELS)), training=False)
    assert len(looked) == 4
    assert isinstance(before, Tensors)
    assert isinstance(after, Tensors)
    assert torch.equal(before.tensors[0], after.tensors[0])


def test_views_are_kept_drawn_anew_by_epoch_and_none_for_tests(looked: list[int]) -> None:
    task, model = made(shift=3, kept_views=4)
    train = task.prepared(model, Tensors((CLIPS, LABELS)), training=True)
    assert isinstance(train, AnyView)
    assert train.views.shape[:2] == (3, 4)
    assert len(looked) == 12
    test = task.prepared(model, Tensors((CLIPS, LABELS)), training=False)
    assert isinstance(test, Tensors)
    assert len(looked) == 12
    assert torch.equal(train.views[:, 0], test.tensors[0])
    assert not torch.equal(train.views[:, 1], train.views[:, 2])
    (plain,) = train.batches(3)
    assert torch.equal(plain[0], test.tensors[0])
    generator = torch.Generator().manual_seed(0)
    seen = [row for _ in range(40) for batch in train.batches(2, generator) for row in batch[0]]
    every = train.views.flatten(0, 1)
    first = [next(i for i, view in enumerate(every) if torch.equal(view, row)) for row in (*every, *seen)]
    assert {*first[12:]} == {*first[:12]}  # each of the 12 is seen, two that happen to be equal aside
    again = task.prepared(model, Tensors((CLIPS, LABELS)), training=True)
    assert isinstance(again, AnyView)
    assert torch.equal(again.views, train.views)
    assert len(looked) == 12


def test_views_without_a_way_to_differ_are_refused() -> None:
    with pytest.raises(RecipeError, match="all views of a clip would be the same"):
        Recognition(kept_views=4)


def test_a_backbone_that_is_trained_is_given_the_clips(looked: list[int]) -> None:
    task, model = made(backbone=FramesConfig(image=ResNet10Config(width=2, small_stem=True)))
    clips = Tensors((CLIPS, LABELS))
    assert task.prepared(model, clips, training=True) is clips
    assert not looked


def test_a_run_looks_at_each_clip_once_and_its_model_recognises_videos(
    data: Path, tmp_path: Path, looked: list[int]
) -> None:
    tiny = {"task.backbone.image.name": "resnet10", "task.backbone.image.width": 2}
    settings = {**SETTINGS, **tiny, "task.size": 16, "task.frames": 4, "data.source": data, "round.rounds": 3}
    settings = {key: value for key, value in settings.items() if not key.startswith("task.backbone.") or key in tiny}
    done = cli("run", "clips", *sets(settings), "--out", tmp_path / "run", "--quiet")
    assert done.code == 0, done.err
    once = len(looked)
    assert 0 < once == len([*(cache_folder() / "features" / "clips").rglob("*.npy")])
    model = load(tmp_path / "run").model
    assert not any(p.requires_grad for p in model.backbone.parameters())  # type: ignore[union-attr]
    video = next(data.rglob("*.mp4"))
    assert cli("recognize", video, "--model", tmp_path / "run").code == 0
