"""Catch the Patch (Wang et al. 2021): patches of a clip move over it, and their boxes are what is to be predicted.

All of it works on whole batches on their device and looks at no value, so a CUDA graph may hold it. Lengths in pixels
are those of the paper's frames of 112 pixels, and scale with the frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.kernels.roi_align import linear_weights

PAPER_SIZE = 112
SCALES = (16, 24, 28, 32, 48, 64)  # pixels
RATIOS = (0.5, 0.67, 0.75, 1, 1.33, 1.5, 2)  # width to height
SIDE_JITTER = 0.18  # of the logarithm of each side
INNER = (0.5, 0.3, 0.2)  # chances of 0, 1, 2 key frames between the first frame and the last
SPEED, GROWTH = 3, 0.025  # most pixels a frame a centre moves, and most a side's logarithm changes
CURVES = (0.7, 0.15, 0.15)  # chances of linear, accelerating, decelerating between two key frames
SHAPES = (0.5, 0.35, 0.15)  # chances of rectangle, ellipse, rhombus
SOFT, TURN = 0.5, (0.30, 0.45)  # chance of soft edges, and how far from the centre they begin (0.5 is the border)
OPACITY = 0.8  # the least at a key frame
SHOWN = 0.8  # chance that a frame shows a patch
CENTRE_STD, SIZE_STD = 0.8, 0.04  # targets are in these units: pixels, and logarithm of size


class Look(NamedTuple):
    """How each of P patches is pasted."""

    source: Tensor  # (B, P) int64: the frame its content is from
    shape: Tensor  # (B, P) 0 rectangle, 1 ellipse, 2 rhombus
    soft: Tensor  # (B, P) width of the soft edge, as a share of the box; 0 is a hard edge
    opacity: Tensor  # (B, P, T) 0 on frames that do not show it


def draw_boxes(batch: int, frames: int, size: int, patches: int = 3, device: torch.device | str = "cpu") -> Tensor:
    """Random trajectories (B, P, T, 4): x1, y1, x2, y2 in whole pixels, inside frames of `size` pixels, at least one
    pixel wide and high. Patches of a clip share key frames, as in the authors' code; centres and sizes do not."""
    unit = size / PAPER_SIZE
    shape = (batch, patches, 2)
    side = unit * draw(SCALES, shape[:2], device)
    root = draw([math.sqrt(r) for r in RATIOS], shape[:2], device)
    extent = torch.stack([side * root, side / root], dim=2) * _around(SIDE_JITTER, shape, device).exp()
    extent = extent.clamp(1, max(size - 1, 1))
    centre = extent / 2 + torch.rand(shape, device=device) * (size - extent)

    keys = key_frames((batch, 1, 1), frames, device=device)
    places = [centre]
    for gap in keys.diff().unbind(-1):
        moved = places[-1] + _around(SPEED * unit, shape, device) * gap
        places.append(torch.minimum(torch.maximum(moved, extent / 2), size - extent / 2))
    curve = draw((0, 1, 2), (batch, 1, 1, keys.shape[-1] - 1), device, CURVES)
    centres = between(torch.stack(places, dim=-1), keys, frames, curve)

    keys = key_frames((batch, 1, 1), frames, device=device)
    sizes = [extent]
    for gap in keys.diff().unbind(-1):
        sizes.append(sizes[-1] * (_around(GROWTH, shape, device) * gap).exp())
    curve = draw((0, 1, 2), (batch, 1, 1, keys.shape[-1] - 1), device, CURVES)
    extents = between(torch.stack(sizes, dim=-1), keys, frames, curve)
    return _pixels(centres - extents / 2, centres + extents / 2, size)


def paste(clips: Tensor, boxes: Tensor) -> Tensor:
    """Clips (B, T, H, W, 3) of floats up to 255 with a random patch at each of the boxes (B, P, T, 4), larger ones
    first so that none is hidden by a larger one."""
    area = (boxes[..., 2:] - boxes[..., :2]).mean(2).prod(2)
    order = area.argsort(dim=1, descending=True)
    boxes = boxes.gather(1, order[:, :, None, None].expand_as(boxes))
    return composed(clips, boxes, draw_look(clips.shape[0], boxes.shape[1], clips.shape[1], clips.device))


def draw_look(batch: int, patches: int, frames: int, device: torch.device | str = "cpu") -> Look:
    """How patches look, by the chances of the paper. The first frame and the source frame always show them."""
    shape = (batch, patches)
    source = (torch.rand(shape, device=device) * frames).long().clamp(max=frames - 1)
    low, high = TURN
    soft = 0.5 - (low + (high - low) * torch.rand(shape, device=device))
    soft = soft.masked_fill(torch.rand(shape, device=device) >= SOFT, 0.0)
    keys = key_frames(shape, frames, device=device)
    opacity = between(OPACITY + (1 - OPACITY) * torch.rand(keys.shape, device=device), keys, frames)
    t = torch.arange(frames, device=device)
    shown = (torch.rand((*shape, frames), device=device) < SHOWN) | (t == 0) | (t == source[..., None])
    return Look(source, draw((0, 1, 2), shape, device, SHAPES), soft, opacity * shown)


def composed(clips: Tensor, boxes: Tensor, look: Look) -> Tensor:
    """Clips with each patch pasted over those before it. Its content is what the source frame of the clip as given has
    in the box of that frame, stretched linearly to the box of each frame."""
    b, _, height, width, _ = clips.shape
    each, result = torch.arange(b, device=clips.device), clips
    for p in range(boxes.shape[1]):
        box, source = boxes[:, p], look.source[:, p]
        taken = box[each, source][:, None]
        columns = linear_weights(_stretched(box[..., 0::2], taken[..., 0::2], width), width).to(clips.dtype)
        rows = linear_weights(_stretched(box[..., 1::2], taken[..., 1::2], height), height).to(clips.dtype)
        content = torch.einsum("btyh,bhwc->btywc", rows, clips[each, source])
        content = torch.einsum("btywc,btxw->btyxc", content, columns)
        mask = _mask(box, height, width, look.shape[:, p, None], look.soft[:, p, None])
        alpha = mask * look.opacity[:, p, :, None, None]
        result = result.lerp(content, alpha[..., None].to(clips.dtype))
    return result


def targets(boxes: Tensor, size: int) -> Tensor:
    """What is to be predicted of trajectories (B, P, T, 4): how far the centre is from that of the first frame, and the
    logarithm of the sides over those of the first frame, in units of CENTRE_STD and SIZE_STD."""
    centre, side = (boxes[..., :2] + boxes[..., 2:]) / 2, (boxes[..., 2:] - boxes[..., :2]).log()
    shift = (centre - centre[:, :, :1]) / (CENTRE_STD * size / PAPER_SIZE)
    return torch.cat([shift, (side - side[:, :, :1]) / SIZE_STD], dim=-1)


def decode(predicted: Tensor, first_boxes: Tensor, size: int) -> Tensor:
    """The trajectories (B, P, T, 4) that have such targets and begin at first_boxes (B, P, 4)."""
    first = first_boxes[:, :, None]
    centre = (first[..., :2] + first[..., 2:]) / 2 + predicted[..., :2] * (CENTRE_STD * size / PAPER_SIZE)
    half = (first[..., 2:] - first[..., :2]) * (predicted[..., 2:] * SIZE_STD).exp() / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def tracking_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Smooth L1 of centres and sizes, summed over the four numbers of a box and averaged over boxes and frames."""
    return F.smooth_l1_loss(predicted, targets, reduction="sum") / (targets.numel() // 4)


def mean_iou(predicted: Tensor, boxes: Tensor) -> Tensor:
    """The mean overlap (intersection over union) of boxes (..., 4) with those predicted."""
    low, high = torch.maximum(predicted[..., :2], boxes[..., :2]), torch.minimum(predicted[..., 2:], boxes[..., 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = [(b[..., 2:] - b[..., :2]).prod(-1) for b in (predicted, boxes)]
    return (common / (areas[0] + areas[1] - common)).mean()


def key_frames(
    shape: tuple[int, ...], frames: int, inner: Sequence[float] = INNER, device: torch.device | str = "cpu"
) -> Tensor:
    """Random key frames (*shape, K + 1), for K chances of 0, 1, ... K - 1 of them between the first and the last frame:
    ascending, evenly spaced but for a jitter of a third of a gap. Slots left over repeat the last frame."""
    slot = torch.arange(len(inner) + 1, device=device)
    count = draw(range(len(inner)), shape, device, inner)[..., None]
    reach = (frames / (3 * (count + 1))).floor()
    jitter = (torch.rand((*shape, len(inner) + 1), device=device) * 2 * reach).floor() - reach
    keys = (slot * frames / (count + 1)).floor() + jitter
    return keys.masked_fill(slot > count, frames - 1).masked_fill(slot == 0, 0).clamp(0, frames - 1)


def between(values: Tensor, keys: Tensor, frames: int, curve: Tensor | None = None) -> Tensor:
    """Values (..., K) at key frames, which some may share, for all frames: (..., T). `curve` (..., K - 1) is how
    a value gets from one key frame to the next: 0 linear (all, without it), 1 accelerating, 2 decelerating."""
    keys = keys.expand(values.shape)
    t = torch.arange(frames, device=values.device)
    part = (keys[..., 1:-1, None] < t).sum(-2)
    start, end = keys.gather(-1, part), keys.gather(-1, part + 1)
    share = (t - start) / (end - start).clamp(min=1)
    if curve is not None:
        kind = curve.expand(*values.shape[:-1], -1).gather(-1, part)
        share = torch.where(kind == 1, share**2, torch.where(kind == 2, 1 - (1 - share) ** 2, share))
    return values.gather(-1, part).lerp(values.gather(-1, part + 1), share)


def draw(
    values: Sequence[float], shape: tuple[int, ...], device: torch.device | str, chances: Sequence[float] = ()
) -> Tensor:
    """Random values, each with its chance, or all with the same. A table on the device would have to be copied there,
    which no CUDA graph may hold."""
    chances = chances or [1 / len(values)] * len(values)
    u, below = torch.rand(shape, device=device), 0.0
    found = torch.full(shape, float(values[0]), device=device)
    for value, chance in zip(values[1:], chances):
        below += chance
        found = found.masked_fill(u >= below, value)
    return found


def _around(most: float, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """Uniform between -most and most."""
    return most * (2 * torch.rand(shape, device=device) - 1)


def _pixels(low: Tensor, high: Tensor, size: int) -> Tensor:
    """Boxes (B, P, T, 4) in whole pixels inside the frame, from corners (B, P, 2, T)."""
    low = low.round().clamp(0, size - 1)
    high = torch.maximum(high.round().clamp(max=size), low + 1)
    return torch.cat([low, high], dim=2).transpose(2, 3)


def _stretched(sides: Tensor, taken: Tensor, length: int) -> Tensor:
    """Which positions of the source frame pixels (..., length) show, where the part between two sides (..., 2) is
    stretched over that between others. Its outermost pixels reach to its sides."""
    middles = torch.arange(length, device=sides.device) + 0.5
    ratio = (taken[..., 1:] - taken[..., :1]) / (sides[..., 1:] - sides[..., :1])
    at = taken[..., :1] + (middles - sides[..., :1]) * ratio - 0.5
    return torch.minimum(torch.maximum(at, taken[..., :1]), taken[..., 1:] - 1)


def _mask(boxes: Tensor, height: int, width: int, shape: Tensor, soft: Tensor) -> Tensor:
    """1 inside the shapes that fill boxes (..., 4), 0 outside: (..., height, width). Soft edges rise from 0 at the
    border to 1 over the width `soft` (...)."""
    x, y = _from_middle(boxes[..., 0::2], width)[..., None, :], _from_middle(boxes[..., 1::2], height)[..., None]
    shape, soft = shape[..., None, None], soft[..., None, None]
    apart = torch.where(shape == 1, (x.square() + y.square()).sqrt(), x + y)
    apart = torch.where(shape == 0, torch.maximum(x, y), apart)
    return ((0.5 - apart) / soft.clamp(min=1e-6)).clamp(0, 1)


def _from_middle(sides: Tensor, length: int) -> Tensor:
    """How far pixels (..., length) are from the middle between two sides (..., 2), which are 0.5 from it."""
    middles = torch.arange(length, device=sides.device) + 0.5
    return (middles - sides.mean(-1, keepdim=True)).abs() / (sides[..., 1:] - sides[..., :1])
