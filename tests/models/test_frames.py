"""An image network over frames, and the heads that see times and places."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedreel.config import load_recipe
from fedreel.core.batchnorm import statistics_kept
from fedreel.core.job import make_task
from fedreel.data.input_scale import LITE
from fedreel.errors import RecipeError
from fedreel.models.backbone import Clips
from fedreel.models.classifier import Classifier
from fedreel.models.frames import FramesConfig
from fedreel.models.heads import PARTS, Attentive, Changes, Mean, Motion, Steady, as_places, shares
from fedreel.models.r3d import R3DConfig
from fedreel.models.resnet import ResNet10Config
from fedreel.tasks.recognition.task import Recognition

TINY = ResNet10Config(width=2, small_stem=True)


@pytest.mark.parametrize("grid", [1, 2])
def test_every_frame_is_seen_as_an_image_alone(grid: int) -> None:
    network = FramesConfig(image=TINY, grid=grid).network(Clips(3, 32)).eval()
    clips = torch.randn(2, 3, 3, 32, 32)
    with torch.no_grad():
        found = network.features(clips)
        for time in range(3):
            maps = network.image.features(clips[:, :, time])
            halves = maps.unflatten(3, (grid, -1)).unflatten(2, (grid, -1)).mean((3, 5))
            assert torch.allclose(found[:, :, time], halves, atol=1e-6)
        assert torch.allclose(network(clips), network.image(clips.transpose(1, 2).flatten(0, 1)).view(2, 3, -1).mean(1))


def test_the_scale_of_colours_is_the_image_network_s() -> None:
    assert FramesConfig().input_scale == LITE
    seen = Recognition(backbone=FramesConfig(), frames=1, size=2).network_input(torch.full((1, 1, 2, 2, 3), 127))
    assert torch.allclose(seen, torch.zeros(1, 3, 1, 2, 2), atol=1e-6)


def test_what_takes_no_images_is_refused() -> None:
    with pytest.raises(RecipeError, match="r3d takes clips"):
        FramesConfig(image=R3DConfig())
    with pytest.raises(RecipeError, match="said once"):
        FramesConfig(image=ResNet10Config(tune="head"))


def test_another_image_network_does_not_inherit_the_recipe_s_weights() -> None:
    task = make_task(load_recipe("clips", ["task.backbone.image.name=resnet10", "task.backbone.image.width=4"]))
    assert isinstance(task, Recognition)
    assert isinstance(task.backbone, FramesConfig)
    assert task.backbone.image == ResNet10Config(width=4)


def test_a_frozen_backbone_stays_as_it_was_in_training_mode() -> None:
    network = FramesConfig(image=TINY, tune="head").built(Clips(2, 32))
    model = Classifier(network, 2).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    model(torch.randn(2, 3, 2, 32, 32)).sum().backward()
    assert model.head.training
    assert not any(m.training for m in network.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["head.fc.weight", "head.fc.bias"]


# heads


def test_a_mean_does_not_see_the_order_of_frames_and_motion_does() -> None:
    seen = torch.rand(4, 5, 6, 2)
    back = seen.flip(2)
    motion = Motion(5).eval()
    assert torch.allclose(Mean(5)(seen), Mean(5)(back))
    there, changes, late = motion(seen).split(5, dim=1)
    there_back, changes_back, late_back = motion(back).split(5, dim=1)
    assert torch.allclose(there, there_back)
    assert torch.allclose(changes, changes_back)
    assert torch.allclose(late, -late_back, atol=1e-6)
    assert late.abs().max() > 1e-3


def test_motion_by_hand() -> None:
    seen = torch.tensor([1.0, 2.0, 6.0]).view(1, 1, 3, 1)
    found = Motion(1).eval()(seen)[0]
    assert torch.allclose(found, torch.tensor([3.0, 2.5, 5 / 3]), rtol=1e-4)  # (1+2+6)/3, (1+4)/2, (-1+0+6)/3
    assert torch.equal(Motion(1).eval()(seen[:, :, :1])[0, 1], torch.tensor(0.0))  # one frame: nothing changes


def test_changes_by_hand() -> None:
    seen = torch.tensor([[0.0, 1, 3, 6, 2, 2, 2], [5.0, 5, 5, 5, 5, 5, 4]]).T.view(1, 1, 7, 2)  # two places
    head = Changes(1, 2).eval()
    found = head(seen)[0] * math.sqrt(8)
    assert torch.allclose(Changes(1, 2, there=3.0).eval()(seen)[0, 6:] * math.sqrt(8), 6 * found[6:])
    steps = [1.5, 0, 3.5, 0, 0, 0.5]  # (1+2)/2, (3+4)/2, (0+0)/2 at the first place
    assert torch.allclose(found, torch.tensor([*steps, 16 / 14, 34 / 14]), rtol=1e-4)  # means of 7, half as heavy
    assert head(seen[:, :, :1])[:, :6].abs().max() == 0  # one frame: nothing changes


def test_a_steady_norm_goes_by_all_that_it_has_seen() -> None:
    """Of the first ten batches plain averages of means and variances; later ones count for a tenth. In training it
    gives what it would give afterwards; a lone clip has no variance."""
    torch.manual_seed(0)
    norm, batches = Steady(3), [torch.randn(8, 3) * 2 + i for i in range(4)]
    for batch in batches:
        found = norm(batch)
        assert torch.equal(found, norm.eval()(batch))
        norm.train()
    assert torch.allclose(norm.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0))
    assert torch.allclose(norm.running_var, torch.stack([b.var(0) for b in batches]).mean(0))
    mean, var = norm.running_mean.clone(), norm.running_var.clone()
    norm(lone := torch.randn(1, 3))
    assert torch.allclose(norm.running_mean, mean + (lone[0] - mean) / 5)
    assert torch.equal(norm.running_var, var)
    for _ in range(20):
        norm(torch.full((2, 3), 7.0))
    assert torch.allclose(norm.running_mean, 7 + (mean - 7 + (lone[0] - mean) / 5) * 0.5 * 0.9**15, atol=1e-4)


def test_within_kept_statistics_a_steady_norm_only_looks() -> None:
    norm = Steady(2)
    norm(torch.randn(5, 2))
    before = norm.running_mean.clone()
    with statistics_kept(norm):
        norm(torch.randn(5, 2) + 9)
    assert torch.equal(norm.running_mean, before)


def test_changes_are_told_from_what_is_there() -> None:
    seen, head = torch.rand(4, 5, 7, 3), Changes(5, 3).eval()
    before, after = (head(x).split([PARTS * 15, 15], dim=1) for x in (seen, seen + torch.rand(4, 5, 1, 3)))
    assert torch.allclose(before[0], after[0], atol=1e-6)
    assert not torch.allclose(before[1], after[1])
    for turned in (seen.flip(2), seen.flip(3)):  # it knows the time, and the place
        assert not torch.allclose(before[0], head(turned)[:, : PARTS * 15])


@pytest.mark.parametrize("times", [1, 2, 3, 4, 15, 16])
def test_parts_of_a_clip_are_those_of_torch_s_adaptive_pooling(times: int) -> None:
    values = torch.rand(2, times, dtype=torch.double)
    expected = nn.functional.adaptive_avg_pool1d(values, PARTS)
    assert torch.allclose(values @ shares(times, PARTS, values).T, expected)


def test_changes_want_a_backbone_whose_places_are_known() -> None:
    with pytest.raises(RecipeError, match="no fixed number of them"):
        Recognition(classes=2, head="changes", backbone=R3DConfig(width=2, blocks=(1, 1, 1, 1))).model()


def test_the_attentive_head_is_attention_of_one_query_as_torch_has_it() -> None:
    torch.manual_seed(0)
    head = Attentive(6, 8).double().eval()
    seen = torch.randn(2, 6, 3, 4, dtype=torch.double)
    with torch.no_grad():
        tokens = head.narrow(head.norm(seen.flatten(2).transpose(1, 2)))
        tokens = head.before(tokens + head._when_and_where(3, 4, tokens))
        query = head.query.expand(2, 1, 8)
        weights = torch.cat([m.weight for m in (head.ask, head.key, head.value)])
        biases = torch.cat([m.bias for m in (head.ask, head.key, head.value)])
        eye, none = torch.eye(8, dtype=torch.double), torch.zeros(8, dtype=torch.double)  # it has no output projection
        found, _ = nn.functional.multi_head_attention_forward(
            query.transpose(0, 1), tokens.transpose(0, 1), tokens.transpose(0, 1), 8, 8, weights, biases, None, None,
            False, 0.0, eye, none, training=False,
        )  # fmt: skip
        expected = query + found.transpose(0, 1)
        expected = (expected + head.mlp(head.after(expected)))[:, 0]
        assert torch.allclose(head(seen), expected)
        assert not torch.allclose(head(seen), head(seen.flip(2)))  # it knows the time
        assert not torch.allclose(head(seen), head(seen.flip(3)))  # and the place


@pytest.mark.parametrize("kind", ["linear", "motion", "changes", "attentive"])
def test_what_a_head_is_given_and_what_it_answers_is_the_whole_network(kind: str) -> None:
    network = FramesConfig(image=TINY, grid=2).network(Clips(3, 32))
    model = Classifier(network, 3, kind=kind, pool_width=8).eval()  # type: ignore[arg-type]
    clips = torch.randn(2, 3, 3, 32, 32)
    with torch.no_grad():
        seen = model.seen(clips)
        assert seen.shape == ((2, 16, 1, 1) if kind == "linear" else (2, 16, 3, 4))
        assert torch.equal(model.answered(seen)[1], model(clips))
    assert as_places(torch.zeros(2, 5, 7)).shape == (2, 5, 7, 1)
