"""Pretexts on clips whose pixels say which frame they are; training, evaluation and what carries over."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedreel.config import DataConfig, TrainConfig
from fedreel.core.optim import make_optimizer
from fedreel.core.training import fit
from fedreel.data.input_scale import IMAGENET
from fedreel.errors import RecipeError
from fedreel.tasks.pretrain.pretexts import Catch, Order, Pretext, Speed, chosen
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.pretrain.windows import Held, Windows
from fedreel.tasks.recognition.task import Recognition
from fedreel.tasks.vision.clip_input import network_input
from fedreel.tasks.vision.clip_views import Views
from support.networks import small_r3d

TINY = Pretrain(backbone=small_r3d(bn_eps=1e-3, stem_size=3), frames=4, size=16)
PRETEXTS = ("speed", "vcop", "ctp")
STRIDES = (-4, -2, -1, 0, 1, 2, 4)


def numbered(n: int, span: int, side: int = 4) -> torch.Tensor:
    """Windows in which every pixel is the number of its frame."""
    return torch.arange(span).to(torch.uint8)[None, :, None, None, None].expand(n, span, side, side, 3)


def times(clips: torch.Tensor) -> torch.Tensor:
    """Which frames numbered clips (..., T, h, w, 3) show."""
    assert torch.allclose(clips, clips[..., :1, :1, :1].expand_as(clips), atol=1e-3)
    return clips[..., 0, 0, 0].round().long()


def moving(n: int, length: int, side: int, seed: int = 0) -> Windows:
    """Clips of a bright bar that moves right, one pixel a frame, and brightens."""
    generator = torch.Generator().manual_seed(seed)
    clips = torch.zeros(n, length, side, side, 3, dtype=torch.uint8)
    for clip, start in zip(clips, torch.randint(side, (n,), generator=generator).tolist()):
        for t in range(length):
            clip[t, :, (start + t) % side] = 80 + 170 * t // length
    return Windows(Held(tuple(clips), side, torch.device("cpu")), TINY._asks)


def asked(pretext: Pretext, windows: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A random question about each."""
    lengths = torch.full((len(windows),), windows.shape[1])
    times, *picked = pretext.pick(lengths, torch.Generator().manual_seed(seed))
    return pretext.draw(chosen(windows, times), *picked)


def exam(pretext: Pretext, windows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [*pretext.exam(windows, torch.full((len(windows),), windows.shape[1]))]


def test_the_frames_of_a_speed_are_so_many_apart_from_every_possible_place() -> None:
    speed = Speed(4, Views(4))
    assert speed.span == 4 * 3 + 1
    torch.manual_seed(0)
    clips, target = asked(speed, numbered(3000, speed.span))
    found: dict[int, set[int]] = {s: set() for s in STRIDES}
    for seen, k in zip(times(clips).tolist(), target.tolist()):
        stride = STRIDES[k]
        assert seen == [seen[0] + stride * i for i in range(4)]
        found[stride].add(min(seen))
    assert found == {s: {*range(13 - 3 * abs(s))} for s in STRIDES}


@pytest.mark.parametrize(("pretext", "classes"), [(Speed(4, Views(4)), 7), (Order(4, Views(4), gap=2), 6)])
def test_the_classes_of_random_questions_are_uniform(pretext: Speed | Order, classes: int) -> None:
    torch.manual_seed(0)
    _, target = asked(pretext, numbered(700 * classes, pretext.span))
    counts = target.bincount()
    assert len(counts) == classes
    assert 600 < counts.min() <= counts.max() < 800


def test_undoing_the_order_of_the_class_gives_the_order_of_time() -> None:
    order = Order(4, Views(4), gap=3)
    assert order.span == 3 * 4 + 2 * 3
    torch.manual_seed(0)
    clips, target = asked(order, numbered(60, order.span))
    assert clips.shape == (60, 3, 4, 4, 4, 3)
    in_time = [[0, 1, 2, 3], [7, 8, 9, 10], [14, 15, 16, 17]]
    for shown, k in zip(times(clips).tolist(), target.tolist()):
        permutation = list(permutations(range(3)))[k]
        back = [shown[permutation.index(i)] for i in range(3)]
        assert back == in_time
    assert times(clips[target == 0])[0].tolist() == in_time


def test_clips_of_one_question_of_order_share_their_crop() -> None:
    order = Order(2, Views(3, scales=(2.0,)), gap=0)
    picture = torch.randint(0, 256, (8, 1, 6, 6, 3)).to(torch.uint8).expand(8, 6, 6, 6, 3)
    torch.manual_seed(0)
    clips, _ = asked(order, picture)
    assert torch.allclose(clips, clips[:, :1, :1].expand_as(clips))


def test_an_exam_asks_every_class_of_the_middle() -> None:
    speed = Speed(3, Views(2))
    found = exam(speed, numbered(2, speed.span))
    assert [t.tolist() for _, t in found] == [[k, k] for k in range(7)]
    assert [times(x)[0].tolist() for x, _ in found] == [
        [8, 4, 0], [6, 4, 2], [5, 4, 3], [4, 4, 4], [3, 4, 5], [2, 4, 6], [0, 4, 8],
    ]  # fmt: skip
    order = Order(1, Views(2), gap=1)
    shown = [tuple(times(x)[0, :, 0].tolist()) for x, _ in exam(order, numbered(1, order.span))]
    assert shown == list(permutations((0, 2, 4)))


def test_frames_to_catch_patches_in_are_ascending_and_at_most_nine_apart() -> None:
    catch = Catch(4, Views(4), 1)
    assert catch.span == 16
    torch.manual_seed(0)
    clips, boxes = asked(catch, numbered(500, catch.span))  # a patch of one colour is a frame's number too
    assert boxes.shape == (500, 3, 4, 4)
    assert clips.shape == (500, 4, 4, 4, 3)
    assert 0 <= clips.min() <= clips.max() <= 15.001
    (clips, boxes), *more = exam(catch, numbered(2, catch.span))
    assert not more
    assert boxes.shape == (2, 3, 4, 4)


def test_questions_about_clips_that_are_too_short_stand_still_at_the_last_frame() -> None:
    lengths, generator = torch.full((300,), 5), torch.Generator().manual_seed(0)
    times, target = Speed(3, Views(4)).pick(lengths, generator)
    found = {STRIDES[k]: {tuple(t) for t, one in zip(times.tolist(), target.tolist()) if one == k} for k in range(7)}
    assert found[4] == {(0, 4, 4)}
    assert found[-4] == {(4, 4, 0)}
    assert found[2] == {(0, 2, 4)}
    assert found[-1] == {(2, 1, 0), (3, 2, 1), (4, 3, 2)}
    (times,) = Catch(4, Views(4), 1).pick(lengths, generator)
    assert (times.diff(dim=1) >= 0).all()
    assert (times.min(), times.max()) == (0, 4)
    (times,) = Catch(1, Views(4), 1).pick(torch.full((300,), 2), generator)
    assert {*times[:, 0].tolist()} == {0, 1}


def test_colours_are_brought_to_the_mean_and_deviation_of_the_norm() -> None:
    clips = torch.tensor([0.485, 0.456, 0.406]).mul(255).expand(1, 2, 4, 4, 3)
    assert torch.allclose(network_input(clips, IMAGENET), torch.zeros(1, 3, 2, 4, 4), atol=1e-6)
    found = network_input(torch.full((1, 2, 4, 4, 3), 255.0), IMAGENET)[0, :, 0, 0, 0]
    assert torch.allclose(found, torch.tensor([0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225]))
    assert Pretrain(norm="imagenet").card()["input"]["std"] == [0.229, 0.224, 0.225]
    torch.manual_seed(0)
    model, pixels = TINY.model().eval(), torch.randint(0, 256, (1, 4, 16, 16, 3)).to(torch.uint8)
    assert not torch.equal(TINY.embed(model, pixels), replace(TINY, norm="imagenet").embed(model, pixels))


def test_wavering_colours_change_along_the_clip_within_their_range() -> None:
    torch.manual_seed(0)
    views = Views(4, jitter=1.0)
    grey = torch.full((200, 40, 4, 4, 3), 100, dtype=torch.uint8)
    clips, _ = asked(Catch(8, views, 1), grey)
    assert clips.min() >= (100 - 30) * 0.88
    assert clips.max() <= (100 + 30) * 1.13
    assert (clips.amax((2, 3, 4)).std(dim=1) > 0.5).float().mean() > 0.9
    plain, _ = asked(Catch(8, replace(views, jitter=0.0), 1), grey)
    assert torch.allclose(plain, torch.full_like(plain, 100.0), atol=1e-3)


@pytest.mark.parametrize("pretext", PRETEXTS)
def test_equal_seeds_give_equal_questions(pretext: str) -> None:
    task = replace(TINY, pretext=pretext)
    windows = torch.randint(0, 256, (3, task._asks.span, 18, 18, 3)).to(torch.uint8)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(asked(task._asks, windows, seed))
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[1]))
    assert not torch.equal(drawn[0][0], drawn[2][0])


@pytest.mark.parametrize("pretext", PRETEXTS)
def test_questions_are_drawn_without_copies_from_the_host_or_looks_at_values(pretext: str) -> None:
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            called.add(func.overloadpacket._qualified_op_name.removeprefix("aten::"))
            return func(*args, **(kwargs or {}))

    called: set[str] = set()
    task = replace(TINY, pretext=pretext, jitter=0.5)
    batch = next(replace(moving(3, 24, 18), asks=task._asks).batches(3))
    with Names():
        task.augment(batch)
        assert "grid_sampler_2d" in called
        assert not called & {"_local_scalar_dense", "lift_fresh", "nonzero", "masked_select", "item", "is_nonzero"}
        torch.tensor([1.0]).item()
    assert {"_local_scalar_dense", "lift_fresh"} <= called  # which it would have found


@pytest.mark.parametrize("pretext", PRETEXTS)
def test_an_evaluation_is_the_same_every_time_and_leaves_random_numbers_alone(pretext: str) -> None:
    torch.manual_seed(0)
    task = replace(TINY, pretext=pretext)
    model, examples = task.model().eval(), replace(moving(5, 24, 18), asks=task._asks)
    before = torch.get_rng_state()
    with torch.no_grad():
        first, second = (task.evaluate(model, examples, 2) for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.get_rng_state())
    assert first["n"] == 5
    assert set(first) == {"loss", "n", "iou" if pretext == "ctp" else "accuracy"}
    assert task.evaluate(model, empty(examples), 2) == {"n": 0}


def empty(windows: Windows) -> Windows:
    return replace(windows, footage=replace(windows.footage, clips=()))


def test_evaluation_counts_each_class_of_each_clip_once() -> None:
    task = TINY
    model = task.model().eval()
    torch.nn.init.zeros_(model.head.fc.weight)
    with torch.no_grad():
        model.head.fc.bias.copy_(torch.tensor([0.0, 0, 0, 5, 0, 0, 0]))  # always "still"
        found = task.evaluate(model, replace(moving(5, 24, 18), asks=task._asks), 2)
        logits = model.head.fc.bias
        expected = -logits.log_softmax(0).mean()
    assert found["accuracy"] == pytest.approx(1 / 7)
    assert found["loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("pretext", PRETEXTS)
def test_the_loss_of_windows_as_they_lie_is_the_same_every_time(pretext: str) -> None:
    torch.manual_seed(0)
    task = replace(TINY, pretext=pretext)
    model = task.model().eval()
    batch = next(iter(replace(moving(4, 24, 18), asks=task._asks).batches(4)))
    losses = [task.loss(task.forward(model, batch), batch).item() for _ in range(2)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("pretext", ["speed", "vcop"])
def test_training_on_clips_that_brighten_steadily_lowers_the_loss(pretext: str) -> None:
    torch.manual_seed(0)
    backbone = small_r3d(4, bn_eps=1e-3, stem_size=3)
    still = {"flip": 0.0, "jitter": 0.0, "dropout": 0.0}
    task = Pretrain(pretext=pretext, backbone=backbone, frames=4, size=8, gap=2, **still)
    model, span = task.model(), task._asks.span
    examples = Windows(Held(tuple(numbered(16, span, 9) * 14), 9, torch.device("cpu")), task._asks)
    config = TrainConfig(batch_size=16, lr=0.05, momentum=0.9)
    optimizer = make_optimizer(model.parameters(), config)
    optimizer.reset(config.lr)
    generator = torch.Generator().manual_seed(0)
    losses = [fit(model, task, examples, optimizer, config, epochs=8, generator=generator).loss for _ in range(4)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.slow
def test_steps_on_the_same_patches_lower_their_loss() -> None:
    torch.manual_seed(0)
    task = replace(TINY, pretext="ctp", backbone=small_r3d(4, bn_eps=1e-3, stem_size=3))
    model = task.model()
    batch = next(iter(replace(moving(4, 24, 18), asks=task._asks).batches(4)))
    parameters = tuple(model.parameters())
    optimizer = make_optimizer(parameters, TrainConfig(optimizer="adam", lr=0.01))
    optimizer.reset(0.01)
    losses = []
    for _ in range(15):
        loss = task.loss(task.forward(model, batch), batch)
        optimizer.step(torch.autograd.grad(loss, parameters))
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_weights_go_from_a_pretext_into_recognition_and_give_the_same_vectors() -> None:
    torch.manual_seed(0)
    clips = torch.randint(0, 256, (2, 8, 32, 32, 3)).to(torch.uint8)
    pretrained = Pretrain(pretext="ctp", backbone=small_r3d())
    supervised = Recognition(classes=2, backbone=small_r3d())
    source, target = pretrained.model().eval(), supervised.model().eval()
    assert source.backbone.features(torch.zeros(1, 3, 8, 32, 32)).shape[3:] == (4, 4)
    target.backbone.load_state_dict(source.backbone.state_dict())
    for pooling, width in (("mean", 16), ("grid", 16)):
        vectors = pretrained.embed(source, clips, pooling)
        assert vectors.shape == (2, width)
        assert torch.equal(vectors, supervised.embed(target, clips, pooling))


@pytest.mark.parametrize("pretext", PRETEXTS)
def test_the_backbones_of_all_pretexts_have_the_same_tensors(pretext: str) -> None:
    names = {n: t.shape for n, t in replace(TINY, pretext=pretext).model().backbone.state_dict().items()}
    assert names == {n: t.shape for n, t in TINY.model().backbone.state_dict().items()}


@pytest.mark.parametrize("pretext", PRETEXTS)
def test_a_network_that_sees_differences_is_blind_to_what_stands_still(pretext: str) -> None:
    torch.manual_seed(0)
    task = replace(TINY, pretext=pretext, frames=9, differences=True)
    model = task.model().eval()
    clips = torch.randint(0, 128, (2, 9, 16, 16, 3)).to(torch.uint8)
    picture = torch.randint(0, 128, (2, 1, 16, 16, 3)).to(torch.uint8)
    assert torch.allclose(task.embed(model, clips), task.embed(model, clips + picture), atol=1e-4)
    questions = asked(task._asks, torch.zeros(2, task._asks.span, 18, 18, 3, dtype=torch.uint8))
    assert torch.isfinite(task.loss(task.forward(model, questions), questions))


def test_clips_are_kept_a_seventh_larger_than_crops(data: Path) -> None:
    task = Pretrain(backbone=small_r3d(), frames=2, size=14)
    population = task.population(DataConfig(source=str(data)), 0)
    clips, target = next(population.data("owner0").train.batches(8))
    assert clips.shape == (len(clips), 2, 16, 16, 3)
    assert task.augment((clips, target))[0].shape == (len(clips), 2, 14, 14, 3)
    assert replace(task, stored=20).side == 20


def test_crops_larger_than_clips_are_refused() -> None:
    with pytest.raises(RecipeError, match="stored"):
        Pretrain(size=32, stored=31)
    for scales in ((), (0.9, 1.0)):
        with pytest.raises(RecipeError, match="scales"):
            Pretrain(scales=scales)


def test_the_card_names_the_pretext() -> None:
    card = Pretrain(pretext="vcop", frames=5, size=20).card()
    assert card["pretext"] == "vcop"
    assert (card["input"]["frames"], card["input"]["size"]) == (5, 20)
