"""Catch the Patch: trajectories, pasting, targets and their loss, by closed forms and pixel by pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedreel.tasks.pretrain import patches
from fedreel.tasks.pretrain.patches import (
    Look,
    between,
    composed,
    decode,
    draw,
    draw_boxes,
    draw_look,
    key_frames,
    mean_iou,
    paste,
    targets,
    tracking_loss,
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def plain(batch: int, count: int, frames: int, *, source: int = 0, shape: int = 0, soft: float = 0.0) -> Look:
    """Opaque patches on every frame."""
    full = (batch, count)
    return Look(torch.full(full, source), torch.full(full, shape), torch.full(full, soft), torch.ones(*full, frames))


def inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """Which pixels lie in any of the boxes (B, P, T, 4)."""
    found = torch.zeros(boxes.shape[0], boxes.shape[2], height, width, dtype=torch.bool)
    for b, p, t in np.ndindex(boxes.shape[:3]):
        x1, y1, x2, y2 = (int(side) for side in boxes[b, p, t])
        found[b, t, y1:y2, x1:x2] = True
    return found


# Key frames


@pytest.mark.parametrize(
    ("inner", "expected"),
    [((1, 0, 0), [{15}, {15}]), ((0, 1, 0), [{6, 7, 8, 9}, {15}]), ((0, 0, 1), [{4, 5}, {9, 10}])],
)
def test_sixteen_frames_have_key_frames_where_the_paper_has_them(inner: Any, expected: list[set[int]]) -> None:
    keys = key_frames((500,), 16, inner)
    assert [{int(k) for k in keys[:, slot]} for slot in (1, 2)] == expected
    assert {(int(k[0]), int(k[3])) for k in keys} == {(0, 15)}


def test_half_of_the_clips_have_no_inner_key_frame_and_a_fifth_have_two() -> None:
    keys = key_frames((20_000,), 16)
    count = (keys[:, 1:3] < 15).sum(1)
    assert [(count == n).float().mean().item() for n in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.02)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 8, 17])
def test_key_frames_ascend_from_the_first_frame_to_the_last(frames: int) -> None:
    keys = key_frames((50, 3), frames)
    assert keys.shape == (50, 3, 4)
    assert bool((keys.diff() >= 0).all())
    assert not keys[..., 0].any()
    assert bool((keys[..., -1] == frames - 1).all())


def test_interpolation_hits_the_values_at_key_frames() -> None:
    keys = key_frames((200,), 16)
    walk = torch.randn(200, 4).cumsum(1)
    repeats = keys.diff() == 0
    for slot in (1, 2, 3):  # equal key frames have equal values, as in a walk whose steps grow with the gaps
        walk[:, slot] = torch.where(repeats[:, slot - 1], walk[:, slot - 1], walk[:, slot])
    for curve in (None, torch.randint(0, 3, (200, 3))):
        frames = between(walk, keys, 16, curve)
        assert torch.equal(frames.gather(1, keys.long()), walk)


def test_curves_are_straight_or_parabolas_that_start_or_end_at_rest() -> None:
    values, keys = torch.tensor([0.0, 5.0]), torch.tensor([0.0, 10.0])
    t = torch.arange(11) / 10
    for curve, expected in enumerate((5 * t, 5 * t**2, 5 * (1 - (1 - t) ** 2))):
        torch.testing.assert_close(between(values, keys, 11, torch.tensor([curve])), expected)


def test_each_value_is_drawn_with_its_chance() -> None:
    found = draw((3, 1, 4), (30_000,), "cpu", (0.7, 0.1, 0.2))
    assert [(found == v).float().mean().item() for v in (3, 1, 4)] == pytest.approx([0.7, 0.1, 0.2], abs=0.02)
    alike = draw((3, 1, 4), (30_000,), "cpu")
    assert [(alike == v).float().mean().item() for v in (3, 1, 4)] == pytest.approx([1 / 3] * 3, abs=0.02)
    assert set(draw((3, 1, 4), (500,), "cpu", (0, 1, 0)).tolist()) == {1.0}


# Trajectories


@pytest.mark.parametrize(("frames", "size"), [(16, 112), (8, 32), (1, 8), (4, 3)])
def test_boxes_are_whole_pixels_inside_the_frames(frames: int, size: int) -> None:
    boxes = draw_boxes(100, frames, size, 2)
    assert boxes.shape == (100, 2, frames, 4)
    assert torch.equal(boxes, boxes.round())
    assert boxes.min() >= 0
    assert boxes.max() <= size
    assert bool((boxes[..., 2:] - boxes[..., :2] >= 1).all())


def test_centres_and_sides_change_no_faster_than_the_paper_allows() -> None:
    boxes = draw_boxes(500, 16, 112)
    centres, sides = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
    # From first to last frame; a box of whole pixels is off by half a pixel, and a border cuts what grows over it.
    away = (boxes[..., :2] > 0).all(-1).all(-1) & (boxes[..., 2:] < 112).all(-1).all(-1)
    assert away.float().mean() > 0.2
    moved = (centres[:, :, -1] - centres[:, :, 0])[away].abs()
    assert 20 < moved.max() <= 3 * 15 + 1
    grown = (sides[:, :, -1].log() - sides[:, :, 0].log())[away].abs()
    slack = (1 / sides[away].min(1).values).max()
    assert 0.2 < grown.max() <= 0.025 * 15 + 2 * slack


def test_without_speed_boxes_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "SPEED", 0)
    monkeypatch.setattr(patches, "GROWTH", 0)
    boxes = draw_boxes(20, 16, 112)
    assert torch.equal(boxes, boxes[:, :, :1].expand_as(boxes))


def test_moves_end_at_the_border_and_do_not_shrink_the_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "GROWTH", 0)
    boxes = draw_boxes(100, 16, 112)
    sides = boxes[..., 2:] - boxes[..., :2]
    assert (sides - sides[:, :, :1]).abs().max() <= 1  # rounding moves both sides by half a pixel
    assert bool(((boxes == 0) | (boxes == 112)).any()), "some reach it"


def test_first_boxes_have_the_sizes_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "SIDE_JITTER", 0)
    first = draw_boxes(3000, 1, 112)[:, :, 0]
    sides = (first[..., 2:] - first[..., :2]).flatten(0, 1)
    known = torch.tensor(
        [[s * r**0.5, s / r**0.5] for s in (16, 24, 28, 32, 48, 64) for r in (0.5, 0.67, 0.75, 1, 1.33, 1.5, 2)]
    )
    assert torch.cdist(sides, known, p=torch.inf).min(1).values.max() <= 1  # rounding moves both sides by half a pixel
    square = (sides[:, 0] - sides[:, 1]).abs() <= 1
    assert square.float().mean() == pytest.approx(1 / 7, abs=0.03)
    monkeypatch.setattr(patches, "SIDE_JITTER", 0.18)
    first = draw_boxes(3000, 1, 112)[:, :, 0]
    assert (first[..., 2] - first[..., 0]).max() > 95  # 64 sqrt(2) = 90.5 without


def test_patches_of_smaller_frames_are_smaller_in_proportion() -> None:
    torch.manual_seed(3)
    large = draw_boxes(50, 8, 448)
    torch.manual_seed(3)
    small = draw_boxes(50, 8, 224)
    torch.testing.assert_close(small, large / 2, atol=1.5, rtol=0)


# Pasting


def test_only_pixels_inside_boxes_change_and_the_clip_given_does_not() -> None:
    clips = 255 * torch.rand(4, 6, 24, 20, 3)
    before, boxes = clips.clone(), draw_boxes(4, 6, 20)
    pasted = paste(clips, boxes)
    changed = (pasted != before).any(-1)
    assert not (changed & ~inside(boxes, 24, 20)).any()
    assert changed.float().sum() > 0.3 * inside(boxes, 24, 20).sum()
    assert torch.equal(clips, before)
    assert pasted.min() >= 0
    assert pasted.max() <= 255


def test_a_rectangle_moved_without_resizing_is_a_copy_of_the_source() -> None:
    clips = torch.randint(0, 256, (2, 3, 16, 16, 3)).float()
    boxes = torch.tensor([[2, 3, 7, 9], [5, 4, 10, 10], [11, 10, 16, 16]]).float().expand(2, 1, 3, 4)
    pasted = composed(clips, boxes, plain(2, 1, 3, source=1))
    expected = clips.clone()
    for t, (x1, y1, x2, y2) in enumerate(boxes[0, 0].int().tolist()):
        expected[:, t, y1:y2, x1:x2] = clips[:, 1, 4:10, 5:10]
    assert torch.equal(pasted, expected)


def test_a_rectangle_resized_is_the_linear_resize_of_the_source_box() -> None:
    clips = torch.randint(0, 256, (1, 4, 32, 32, 3)).float()
    boxes = torch.tensor([[4, 5, 12, 19], [0, 0, 21, 8], [10, 3, 32, 32], [30, 30, 31, 32]]).float()[None, None]
    pasted = composed(clips, boxes, plain(1, 1, 4))
    content = clips[:, 0, 5:19, 4:12].permute(0, 3, 1, 2)
    for t, (x1, y1, x2, y2) in enumerate(boxes[0, 0].int().tolist()):
        resized = torch.nn.functional.interpolate(content, (y2 - y1, x2 - x1), mode="bilinear", align_corners=False)
        torch.testing.assert_close(pasted[:, t, y1:y2, x1:x2], resized.permute(0, 2, 3, 1), atol=1e-3, rtol=0)


def coverage(box: tuple[int, int, int, int], shape: int, soft: float = 0.0) -> Tensor:
    """How much of a black frame a white patch covers; the patch is white because its source frame is."""
    clips = torch.stack([torch.zeros(20, 20, 3), torch.ones(20, 20, 3)])[None]
    boxes = torch.tensor(box).float().expand(1, 1, 2, 4)
    return composed(clips, boxes, plain(1, 1, 2, source=1, shape=shape, soft=soft))[0, 0, ..., 0]


@pytest.mark.parametrize("shape", [0, 1, 2])
@pytest.mark.parametrize("box", [(2, 3, 13, 10), (0, 0, 20, 20), (5, 5, 6, 6)])
def test_shapes_cover_the_pixels_whose_middle_is_in_the_rectangle_ellipse_or_rhombus(shape: int, box: Any) -> None:
    x1, y1, x2, y2 = box
    expected = torch.zeros(20, 20)
    for y, x in np.ndindex(20, 20):
        u, v = abs(x + 0.5 - (x1 + x2) / 2) / (x2 - x1) * 2, abs(y + 0.5 - (y1 + y2) / 2) / (y2 - y1) * 2
        expected[y, x] = (max(u, v) < 1 - 1e-9, u * u + v * v < 1 - 1e-9, u + v < 1 - 1e-9)[shape]
    found = coverage(box, shape)
    border = (found > 0) & (found < 1)  # rounding, where a middle lies on the border
    assert not border.any() or found[border].max() < 0.1
    assert torch.equal((found > 0.5).float(), expected)


def test_soft_edges_rise_linearly_from_the_border_and_keep_the_middle_opaque() -> None:
    row = coverage((0, 0, 20, 20), shape=0, soft=0.2)[10]  # the edge is four pixels wide
    expected = torch.ones(20)
    expected[:4] = torch.tensor([0.125, 0.375, 0.625, 0.875])
    expected[16:] = expected[:4].flip(0)
    torch.testing.assert_close(row, expected)


def test_an_opacity_mixes_the_patch_with_what_is_below() -> None:
    clips = torch.stack([torch.full((8, 8, 3), 100.0), torch.full((8, 8, 3), 200.0)])[None]
    boxes = torch.tensor([0.0, 0.0, 8.0, 8.0]).expand(1, 1, 2, 4)
    look = plain(1, 1, 2, source=1)._replace(opacity=torch.tensor([[[0.75, 0.0]]]))
    pasted = composed(clips, boxes, look)
    assert torch.equal(pasted[0, 0], torch.full((8, 8, 3), 175.0))
    assert torch.equal(pasted[0, 1], clips[0, 1])


def test_later_patches_lie_over_earlier_ones_and_hold_what_the_clip_had_before() -> None:
    clips = torch.stack([torch.full((4, 4, 3), 10.0), torch.full((4, 4, 3), 20.0)])[None]
    boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [1.0, 1.0, 3.0, 3.0]]).view(1, 2, 1, 4).expand(1, 2, 2, 4)
    look = plain(1, 2, 2)._replace(source=torch.tensor([[0, 1]]))  # the first covers all that the second is taken from
    expected = torch.full((4, 4, 3), 10.0)
    expected[1:3, 1:3] = 20
    assert torch.equal(composed(clips, boxes, look), expected.expand(1, 2, 4, 4, 3))


def test_the_larger_patch_is_pasted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(patches, "composed", lambda clips, boxes, look: seen.append(boxes) or clips)
    boxes = draw_boxes(30, 5, 32)
    paste(torch.zeros(30, 5, 32, 32, 3), boxes)
    sides = (seen[0][..., 2:] - seen[0][..., :2]).mean(2)
    assert bool((sides.prod(-1).diff(dim=1) <= 0).all())
    assert sorted(seen[0][7].flatten(1).tolist()) == sorted(boxes[7].flatten(1).tolist())


def test_looks_have_the_chances_of_the_paper() -> None:
    look = draw_look(4000, 3, 16)
    assert [(look.shape == s).float().mean().item() for s in range(3)] == pytest.approx([0.5, 0.35, 0.15], abs=0.02)
    assert (look.soft > 0).float().mean() == pytest.approx(0.5, abs=0.02)
    edges = 0.5 - look.soft[look.soft > 0]
    assert 0.30 <= edges.min() < 0.31
    assert 0.44 < edges.max() <= 0.4501
    assert torch.bincount(look.source.flatten(), minlength=16).div(12_000).tolist() == pytest.approx(
        [1 / 16] * 16, abs=0.01
    )
    shown = look.opacity > 0
    assert 0.8 <= look.opacity[shown].min() < 0.81
    assert 0.99 < look.opacity.max() <= 1
    assert bool(shown[..., 0].all())
    assert bool(shown.gather(2, look.source[..., None]).all())
    elsewhere = torch.arange(1, 16) != look.source[..., None]
    assert shown[..., 1:][elsewhere].float().mean() == pytest.approx(0.8, abs=0.01)


def test_opacity_has_no_jumps() -> None:
    opacity = draw_look(500, 3, 16).opacity
    both = (opacity[..., 1:] > 0) & (opacity[..., :-1] > 0)
    assert opacity.diff()[both].abs().max() <= 0.2 / 4 + 1e-6  # key frames are four frames apart or more


# Targets, loss, overlap


@pytest.mark.parametrize("size", [112, 32])
def test_targets_decode_back_to_the_boxes(size: int) -> None:
    boxes = draw_boxes(20, 16, size)
    again = decode(targets(boxes, size), boxes[:, :, 0], size)
    torch.testing.assert_close(again, boxes, atol=1e-3, rtol=0)
    assert mean_iou(again, boxes).item() == pytest.approx(1, abs=1e-4)


def test_targets_of_a_worked_example() -> None:
    boxes = torch.tensor([[10.0, 20.0, 30.0, 40.0], [14.0, 20.0, 34.0, 60.0]]).view(1, 1, 2, 4)
    expected = torch.tensor([[0, 0, 0, 0], [4 / 0.8, 10 / 0.8, 0, 0.6931472 / 0.04]])
    torch.testing.assert_close(targets(boxes, 112)[0, 0], expected)
    torch.testing.assert_close(targets(boxes * 2, 224)[0, 0], expected)


def test_the_loss_is_zero_at_the_targets_and_smooth_l1_elsewhere() -> None:
    truth = targets(draw_boxes(2, 4, 112), 112)
    assert tracking_loss(truth, truth) == 0
    assert tracking_loss(truth + 0.5, truth).item() == pytest.approx(4 * 0.125)  # four numbers, x^2 / 2 below 1
    assert tracking_loss(truth - 3, truth).item() == pytest.approx(4 * 2.5, rel=1e-5)  # |x| - 1 / 2 above
    off = torch.zeros(2, 3, 4, 4)
    off[0, 0, 0, 3] = 2
    assert tracking_loss(truth + off, truth).item() == pytest.approx(1.5 / 24, rel=1e-4)


def test_overlaps_of_worked_examples() -> None:
    box = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
    for other, overlap in (([0, 0, 4, 4], 1), ([2, 0, 6, 4], 8 / 24), ([5, 5, 6, 6], 0), ([1, 1, 3, 3], 0.25)):
        assert mean_iou(torch.tensor([other]).float(), box).item() == pytest.approx(overlap)
    assert mean_iou(box.expand(2, 4), torch.tensor([[0.0, 0.0, 4.0, 4.0], [9.0, 9.0, 10.0, 10.0]])) == 0.5


# Random numbers and graphs


def test_the_same_seed_gives_the_same_boxes_and_clips() -> None:
    clips, results = 255 * torch.rand(2, 4, 16, 16, 3), []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        boxes = draw_boxes(2, 4, 16)
        results.append((boxes, paste(clips, boxes)))
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[1]))
    assert not torch.equal(results[0][1], results[2][1])


class Devices(TorchDispatchMode):
    """Notes on which devices the results of operations are."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {t.device.type for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)}
        return result


def test_no_step_looks_at_a_value_or_copies_one_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensor", "as_tensor"):  # of Python numbers: a copy from the host
        monkeypatch.delattr(torch, name)
    clips = torch.empty(2, 16, 112, 112, 3, device="meta")  # tensors without values
    with Devices() as devices:
        boxes = draw_boxes(2, 16, 112, device=clips.device)
        truth = targets(boxes, 112)
        loss = tracking_loss(truth, targets(decode(truth, boxes[:, :, 0], 112), 112)) + mean_iou(boxes, boxes)
        assert paste(clips, boxes).shape == clips.shape
    assert loss.shape == ()
    assert devices.seen == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_recording_draws_anew_and_as_without_it() -> None:
    clips = 255 * torch.rand(2, 8, 32, 32, 3, device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        boxes = draw_boxes(2, 8, 32, device=clips.device)
        return boxes, paste(clips, boxes)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    torch.manual_seed(3)
    graph.replay()
    first = [t.clone() for t in recorded]
    graph.replay()
    assert not torch.equal(first[0], recorded[0])
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(first, step()))
