"""Noise on a backbone: nothing for k = 0, of the stated size, on what it should be on, and gone afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from fedreel.core.abilities import Embeds
from fedreel.tasks.pretrain.perturbation import SIZES, perturbed_retrieval
from fedreel.tasks.vision.evaluate.retrieval import LabelledSet, labelled_set, retrieval
from support.shelf import flat, shelved


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(1, 10_000), nn.BatchNorm1d(10_000))
        self.head = nn.Linear(3, 3)


@dataclass(frozen=True)
class Watching(Embeds):
    """Keeps the model's state whenever it is used; its vectors tell greys apart while the weights are as they were."""

    seen: list[dict[str, Tensor]] = field(default_factory=list)
    broken: bool = False
    frames: int = 2

    @property
    def side(self) -> int:
        return 2

    def embed(self, model: nn.Module, clips: Tensor, pooling: Literal["mean", "grid"] = "mean") -> Tensor:
        assert not model.backbone.training  # type: ignore[union-attr]
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.seen.append(state)
        grey = clips[:, 0, 0, 0, :1].float()
        vectors = torch.cat([grey, 100 - grey], dim=1)
        if torch.equal(state["backbone.0.weight"], self.seen[0]["backbone.0.weight"]):
            return vectors
        return vectors / 0 if self.broken else torch.ones_like(vectors)


@pytest.fixture
def two(tmp_path: Path) -> LabelledSet:
    splits = ["train", "train", "test", "test"]
    return labelled_set("two", shelved(tmp_path / "s", [flat(v) for v in (0, 99, 0, 99)], ["a", "b", "a", "b"], splits))


def test_no_noise_changes_nothing_and_the_model_comes_back(two: LabelledSet) -> None:
    torch.manual_seed(0)
    model, task = Net(), Watching()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = perturbed_retrieval(model, task, two, sizes=(0.0, *SIZES))
    assert [k for k, _, _ in found] == [0.0, *SIZES]
    assert found[0] == (0.0, retrieval(model, task, two, ks=(1,))[1], 0.0)
    assert [mean for _, mean, _ in found] == [1.0] + [0.5] * 5  # equal vectors find the first of the gallery
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def moves(two: LabelledSet, norms: bool) -> dict[str, list[Tensor]]:
    """How far each tensor moved at k = 0.1 and 0.4, for two seeds."""
    torch.manual_seed(0)
    model, task = Net(), Watching()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    perturbed_retrieval(model, task, two, sizes=(0.1, 0.4), seeds=(0, 1), norms=norms)
    states = task.seen[::2]  # each measure looks at the gallery and at the queries
    return {name: [state[name] - tensor for state in states] for name, tensor in start.items()}


def test_noise_has_the_stated_size_and_statistics_and_head_stay(two: LabelledSet) -> None:
    found = moves(two, norms=True)
    for name in ("backbone.0.weight", "backbone.0.bias", "backbone.1.weight", "backbone.1.bias"):
        assert [float(m.std()) for m in found[name]] == pytest.approx([0.1, 0.4, 0.1, 0.4], rel=0.03)
        assert [float(m.mean()) for m in found[name]] == pytest.approx([0.0] * 4, abs=0.02)
        assert torch.allclose(4 * found[name][0], found[name][1], atol=1e-5), "a seed's noise is the same for all k"
        assert (
            abs(float(torch.corrcoef(torch.stack([found[name][0].flatten(), found[name][2].flatten()]))[0, 1])) < 0.05
        )
    others = [name for name in found if "running" in name or "head" in name]
    assert len(others) == 4
    assert all(not m.any() for name in others for m in found[name])


def test_batch_norm_can_be_spared_with_the_same_noise_on_the_rest(two: LabelledSet) -> None:
    every, spared = moves(two, norms=True), moves(two, norms=False)
    assert all(not m.any() for name in ("backbone.1.weight", "backbone.1.bias") for m in spared[name])
    assert all(torch.equal(a, b) for a, b in zip(every["backbone.0.weight"], spared["backbone.0.weight"]))


def test_noise_that_is_too_much_for_a_float_is_a_bad_model_not_an_error(two: LabelledSet) -> None:
    found = perturbed_retrieval(Net(), Watching(broken=True), two, sizes=(0.0, 0.5), seeds=(0,))
    assert found[0][1] == 1.0
    assert 0 <= found[1][1] <= 1
