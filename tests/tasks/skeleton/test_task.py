"""Skeleton recognition: augmentation, class lists of different lengths, profiles, and runs on several sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedreel.config import DataConfig, load_recipe, make_recipe
from fedreel.core.job import make_task
from fedreel.core.task import Tensors
from fedreel.core.weights import bind
from fedreel.errors import DataError, FedreelError, RecipeError
from fedreel.runs.run import run
from fedreel.tasks.skeleton.stgcn import STGCNConfig
from fedreel.tasks.skeleton.task import SkeletonRecognition, cropped, moved, sheared
from support.moves import TASK, make_sets, train

SETTINGS: dict[str, Any] = {**TASK, "backbone": STGCNConfig(width=4, features=8, topology="both")}
del SETTINGS["name"]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sets(tmp_path_factory.mktemp("sets"))


def clock(n: int = 3, length: int = 24) -> torch.Tensor:
    """Sequences in which every value is the number of its frame."""
    return torch.arange(float(length))[None, None, :, None, None].expand(n, 3, length, 2, 1).clone()


def test_a_crop_is_a_stretch_of_the_sequence_mirrored_at_its_ends() -> None:
    torch.manual_seed(0)
    length, spare = 24, 4
    padded = [*reversed(range(spare)), *range(length), *reversed(range(length - spare, length))]
    stretches = {tuple(padded[s : s + length]) for s in range(2 * spare + 1)}
    found = {tuple(int(v) for v in row) for row in cropped(clock(200))[:, 0, :, 0, 0]}
    assert found == stretches


def test_a_shear_keeps_the_diagonal_and_differs_by_sequence() -> None:
    torch.manual_seed(0)
    basis = torch.eye(3)[None, :, None, :, None].expand(50, 3, 4, 3, 1)  # joint v is the unit vector v
    matrices = sheared(basis)[:, :, 0, :, 0]
    assert torch.allclose(matrices.diagonal(dim1=1, dim2=2), torch.ones(50, 3))
    beside = matrices[:, ~torch.eye(3, dtype=torch.bool)]
    assert float(beside.abs().max()) <= 0.5
    assert float(beside.std()) == pytest.approx(1 / 12**0.5, rel=0.15)
    out = sheared(basis)
    assert torch.equal(out[:, :, 0], out[:, :, 3])  # one matrix for all frames
    assert not torch.equal(out[0], out[1])


def test_a_move_turns_scales_and_shifts_steadily_and_leaves_depth_and_absent_bodies_alone() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 3, 10, 5, 2)
    x[..., 1] = 0
    out = moved(x)
    assert torch.equal(out[:, 2], x[:, 2])
    assert not out[..., 1].any()
    still = moved(x[:, :, :1, :, :1].expand(-1, -1, 10, -1, -1))
    steps = still[:, :2].diff(dim=2).abs()
    assert float(steps.max()) > 0  # it moves,
    assert float(steps.max()) < 0.3  # and nothing jumps


def test_the_distance_of_joints_in_the_picture_scales_by_what_a_move_may() -> None:
    torch.manual_seed(1)
    x = torch.randn(64, 3, 6, 2, 1)
    out = moved(x)
    before = (x[:, :2, :, 0] - x[:, :2, :, 1]).norm(dim=1)
    after = (out[:, :2, :, 0] - out[:, :2, :, 1]).norm(dim=1)
    ratio = after / before
    assert float(ratio.min()) >= 0.9 - 1e-4
    assert float(ratio.max()) <= 1.1 + 1e-4


def test_augmentation_is_for_training_only(sets: Path) -> None:
    task = SkeletonRecognition(**{**SETTINGS, "augmentation": "shear-crop"})
    examples = task.population(DataConfig(source=str(sets)), 0).data("left").test
    model = task.model().eval()
    with torch.no_grad():
        results = [task.evaluate(model, examples, 4) for _ in range(2)]
    assert results[0] == results[1]
    batch = next(iter(examples.batches(4)))
    assert not torch.equal(task.augment(batch)[0], batch[0])
    assert torch.equal(task.augment(batch)[1], batch[1])


def test_a_list_shorter_than_the_classifier_is_as_good_as_one_of_its_length() -> None:
    """Loss and accuracy of a client with 2 of 5 classes are those of a 2-way classifier with the same rows."""
    task = SkeletonRecognition(**{**SETTINGS, "classes": 5})
    small = SkeletonRecognition(**{**SETTINGS, "classes": 2})
    torch.manual_seed(0)
    wide, narrow = task.model().eval(), small.model().eval()
    state = wide.state_dict()
    narrow.load_state_dict({n: t[:2] if n.startswith("head.fc") else t for n, t in state.items()})
    batch = (torch.randn(6, 3, 12, 20, 1), torch.arange(6) % 2, torch.full((6,), 2))
    one, other = task.forward(wide, batch), small.forward(narrow, batch)
    assert torch.allclose(one.logits[:, :2], other.logits)
    assert torch.allclose(task.loss(one, batch), small.loss(other, batch))


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({}, {"head.fc.weight", "head.fc.bias", "running_mean", "running_var", "num_batches_tracked"}),
        ({"own_statistics": False}, {"head.fc.weight", "head.fc.bias"}),
        ({"own_classifier": False, "own_statistics": False}, set()),
    ],
)
def test_what_is_a_clients_own(changes: dict[str, Any], own: set[str]) -> None:
    task = SkeletonRecognition(**{**SETTINGS, "projection": 4, **changes})
    found = [t.name for t in bind(task.model()).layout.tensors if task.own(t)]
    assert {n if n.startswith("head.fc") else n.rpartition(".")[2] for n in found} == own


def test_the_profiles_of_paper_and_code() -> None:
    paper = SkeletonRecognition(classes=60)
    code = SkeletonRecognition(classes=60, backbone=STGCNConfig(features=256, neck=512))
    count = [sum(p.numel() for p in t.model().backbone.parameters()) for t in (paper, code)]
    assert count[0] == 344_836
    assert count[1] == 821_380 + 256 * 512 + 512 + 2 * 512  # the neck: a layer and its batch norm
    assert code.model().head["fc"].in_features == 512


def test_training_in_one_place_needs_shared_tensors(sets: Path, tmp_path: Path) -> None:
    with pytest.raises(FedreelError, match="tensors of its own"):
        train(tmp_path / "a", sets / "left.npz", "centralised")
    train(tmp_path / "b", sets / "left.npz", "centralised", own_classifier=False, own_statistics=False)
    with pytest.raises(FedreelError, match="label list of its own"):
        train(tmp_path / "c", sets, "centralised", own_classifier=False, own_statistics=False)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedbn", "fedagm", "moon", "local-only", "fsar"])
def test_every_method_trains_on_sets_with_different_classes(sets: Path, tmp_path: Path, method: str) -> None:
    out = train(tmp_path / "run", sets, method, projection=4 if method == "moon" else 0)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["complete"]
    assert 0 <= summary["metrics"]["top1"] <= 1
    assert summary["metrics"]["loss"] > 0


def test_a_run_learns_and_a_set_with_more_classes_is_refused(sets: Path, tmp_path: Path) -> None:
    out = train(tmp_path / "run", sets, "fedavg", {"rounds": 25})
    losses = [r["loss"] for r in map(json.loads, (out / "metrics.jsonl").open()) if r["phase"] == "train"]
    assert losses[-1] < 0.85 * losses[0]
    with pytest.raises(DataError, match="more classes than the task"):
        train(tmp_path / "few", sets, classes=2)


def test_a_set_that_is_left_out_is_no_client(sets: Path) -> None:
    task = SkeletonRecognition(**{**SETTINGS, "leave_out": "right"})
    population = task.population(DataConfig(source=str(sets)), 0)
    assert population.clients == ("left",)
    assert population.unseen is not None
    with pytest.raises(RecipeError, match="right"):
        SkeletonRecognition(**{**SETTINGS, "leave_out": "rihgt"}).population(DataConfig(source=str(sets)), 0)


@pytest.mark.parametrize(
    "setting",
    [{"classes": 1}, {"length": 0}, {"joints": "kinnect"}, {"backbone": {"width": 0}}, {"backbone": {"dropout": 1.5}}],
)
def test_settings_that_cannot_be_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises((RecipeError, DataError)):
        make_task(make_recipe({"task": {**TASK, **setting}, "method": {"name": "fsar"}})).model()


def test_the_card_says_what_a_user_must_feed_the_model() -> None:
    card = SkeletonRecognition(**SETTINGS).card()["input"]
    assert card["length"] == 12
    assert len(card["joints"]) == 20
    assert all(0 <= a < 20 and 0 <= b < 20 for a, b in card["bones"])


def test_the_papers_recipe_is_the_papers_setting() -> None:
    recipe = load_recipe("fsar-paper")
    task = make_task(recipe)
    assert isinstance(task, SkeletonRecognition)
    assert task.backbone == STGCNConfig(width=16, features=128, topology="learnable")
    assert (task.length, recipe.round.rounds, recipe.train.batch_size) == (50, 300, 128)
    assert make_recipe({"task": {"name": "skeleton"}, "method": {"name": "fsar"}})


@pytest.mark.slow
def test_the_recipe_runs_on_the_playground(tmp_path: Path) -> None:
    recipe = load_recipe(
        "fsar", {"round.rounds": 1, "task.backbone.width": 2, "task.backbone.features": 4, "device": "cpu"}
    )
    summary = run(recipe, tmp_path / "run", quiet=True).summary
    assert summary["clients"] == 5


def test_settled_statistics_are_those_of_the_training_part() -> None:
    """A model whose running statistics are far off is tested as one that has seen its training part anew."""
    task = SkeletonRecognition(**{**SETTINGS, "settle": True})
    model, x = task.model(), torch.randn(8, 3, SETTINGS["length"], 20, SETTINGS["bodies"])
    train = Tensors((x, torch.zeros(8, dtype=torch.long), torch.full((8,), SETTINGS["classes"])))
    with torch.no_grad():
        model.backbone.data_bn.running_mean.fill_(50)
        task.before_test(model, train, 8)
    flat = x.permute(0, 4, 3, 1, 2).reshape(8 * SETTINGS["bodies"], 60, -1)
    assert torch.allclose(model.backbone.data_bn.running_mean, flat.mean((0, 2)), atol=1e-5)
    assert not model.training
    SkeletonRecognition(**SETTINGS).before_test(model, train, 8)
    assert torch.allclose(model.backbone.data_bn.running_mean, flat.mean((0, 2)), atol=1e-5)
