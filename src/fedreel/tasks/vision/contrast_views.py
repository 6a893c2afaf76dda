"""Random views of images and clips for contrastive learning, of a whole batch at once, on its device, as a CUDA graph
can record them (nothing waits for the device, no shape depends on what is drawn).

A view is linear in the pixels up to the last clamp. Crop, scaling, mirror and blur are one matrix for the rows of an
image and one for its columns, and all changes of colour are one matrix for red, green and blue: three batched products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.tasks.vision.clip_views import below, sometimes, table

JITTER = 0.8  # probability that the colours change
VALUES, HUE = 0.8, 0.2  # most that brightness, contrast and saturation change, and hue, of a circle; at strength 1
SIGMA = (0.1, 2.0)  # of the blur, pixels
LUMA = (299, 587, 114)  # ITU-R 601: thousandths of red, green and blue in grey


@dataclass(frozen=True)
class SimCLR:
    """What is seen of images (N, H, W, 3) or clips (N, T, H, W, 3) of bytes, or of floats up to 255: images or clips of
    `size` pixels, floats from 0 to 255. All frames of a clip are treated alike.

    As in SimCLR: a random crop brought to `size`, a mirror, a change of colours, grey, a blur. Colours change in a
    fixed order: brightness, contrast, saturation, hue, then grey. What differs from torchvision: a box that does not
    fit into the image is cut to it, not drawn again; hue is turned about the grey axis of RGB, as `views.recoloured`
    does; values are clamped to 0 to 255 at the end only; contrast is about the mean grey of the blurred crop, of a clip
    that of all frames."""

    size: int
    strength: float = 0.5  # of the changes of colour: 1 for large images, 0 for none
    flip: float = 0.5  # probability
    scale: tuple[float, float] = (0.08, 1.0)  # least and most of the area that a crop has
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # least and most of its width to its height
    grey: float = 0.2  # probability
    blur: float = 0.5  # probability

    def random(self, images: Tensor) -> Tensor:
        clips = images if images.dim() == 5 else images[:, None]
        with torch.autocast(clips.device.type, enabled=False):  # its products would not keep bytes apart
            seen = self._seen(clips)
            if self.strength or self.grey:
                seen = coloured(seen, *draw_colours(len(seen), self.strength, self.grey, seen.device))
        seen = seen.permute(0, 2, 3, 4, 1)
        return seen if images.dim() == 5 else seen[:, 0]

    def whole(self, images: Tensor) -> Tensor:
        """All of the images or clips, in the size of a view and in floats: nothing is drawn."""
        return scaled(images, self.size).float()

    def _seen(self, clips: Tensor) -> Tensor:
        """Random views in their own colours, (N, 3, T, size, size)."""
        n, height, width, device = len(clips), *clips.shape[2:4], clips.device
        box = draw_boxes(n, height, width, self.scale, self.ratio, device)
        pixels = torch.arange(self.size, device=device).expand(n, self.size)
        rows = resampling(box.top, box.height, height, pixels)
        columns = resampling(box.left, box.width, width, _mirrored(pixels, self.flip))
        if self.blur:
            blurred = draw_blurs(n, self.size, self.blur, device) @ torch.cat([rows, columns], dim=2)
            rows, columns = blurred.split([height, width], dim=2)
        return resampled(clips, rows, columns)


def crop_and_flip(images: Tensor, size: int, padding: int = 4, flip: float = 0.5) -> Tensor:
    """Images (N, H, W, 3) or clips (N, T, H, W, 3) between borders of `padding` black pixels: a square of `size` pixels
    from a random place of them, mirrored with probability `flip`, in floats. Pixels stay as they are."""
    clips = images if images.dim() == 5 else images[:, None]
    padded = F.pad(clips, (0, 0, padding, padding, padding, padding))
    n, frames, height, width, channels = padded.shape
    device = clips.device
    pixels = torch.arange(size, device=device).expand(n, size)
    top, left = (torch.randint(side - size + 1, (n, 1), device=device) for side in (height, width))
    rows = torch.arange(n * frames, device=device).view(n, frames, 1) * height + (top + pixels)[:, None]
    places = rows[..., None] * width + (left + _mirrored(pixels, flip))[:, None, None]
    seen = padded.reshape(-1, channels).index_select(0, places.view(-1)).float().view(*places.shape, -1)
    return seen if images.dim() == 5 else seen[:, 0]


def scaled(images: Tensor, size: int) -> Tensor:
    """Images (N, H, W, 3) or clips (N, T, H, W, 3) brought to `size` pixels a side, in floats; those that have it stay
    as they are."""
    height, width = images.shape[-3:-1]
    if height == width == size:
        return images
    clips, device = images if images.dim() == 5 else images[:, None], images.device
    start, pixels = torch.zeros(1, dtype=torch.long, device=device), torch.arange(size, device=device)[None]
    with torch.autocast(device.type, enabled=False):  # its products would not keep bytes apart
        rows, columns = (resampling(start, start + side, side, pixels) for side in (height, width))
        seen = resampled(clips, rows, columns).permute(0, 2, 3, 4, 1)
    return seen if images.dim() == 5 else seen[:, 0]


class Boxes(NamedTuple):
    """Whole pixels, (N,) each."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def draw_boxes(
    n: int, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], device: torch.device
) -> Boxes:
    """Boxes inside images: of an area even in `scale`, as a share of the image's, and a width to height whose logarithm
    is even in that of `ratio`; no side longer than the image's."""
    area = height * width * _evenly(n, *scale, device)
    aspect = _evenly(n, math.log(ratio[0]), math.log(ratio[1]), device).exp()
    high = (area / aspect).sqrt().round().clamp(1, height).long()
    wide = (area * aspect).sqrt().round().clamp(1, width).long()
    return Boxes(below(height - high + 1), below(width - wide + 1), high, wide)


def resampling(start: Tensor, extent: Tensor, length: int, pixels: Tensor) -> Tensor:
    """Matrices (N, S, length) that bring `extent` of `length` pixels from `start` on to S: pixels (N, S) says which of
    the S each is. Linear interpolation, and where S is less than the extent an average over what a pixel covers."""
    step = (extent / pixels.shape[1])[:, None]
    at = start[:, None] + (pixels + 0.5) * step - 0.5
    cells = torch.arange(length, device=start.device)
    inside = (cells >= start[:, None]) & (cells < (start + extent)[:, None])
    near = (1 - (cells - at[..., None]).abs() / step.clamp(min=1)[..., None]).clamp_(min=0) * inside[:, None]
    return near / near.sum(2, keepdim=True)


def draw_blurs(n: int, size: int, chance: float, device: torch.device) -> Tensor:
    """Matrices (N, size, size) that blur with this probability and else change nothing: Gaussian kernels of a tenth of
    the side, of an even sigma; pixels beyond the border are the reflected ones. They are multiplied with those of the
    resampling, so that no image is convolved."""
    reach = max(3, size // 10 | 1) // 2
    off = torch.arange(-reach, reach + 1, device=device)
    blurred = torch.rand(n, device=device) < chance
    sigma = torch.where(blurred, _evenly(n, *SIGMA, device), 1e-3)  # so narrow that one tap is 1 and the others are 0
    taps = (-0.5 * (off / sigma[:, None]).square()).exp()
    taps = taps / taps.sum(1, keepdim=True)
    reflected = F.pad(torch.eye(size, device=device)[None], (0, 0, reach, reach), mode="reflect")[0]
    shifted = reflected.unfold(0, len(off), 1).reshape(size * size, len(off))
    return (taps @ shifted.T).view(n, size, size)


def resampled(clips: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Planes (N, 3, T, S, S') of clips: `rows` (N, S, H) times the image times `columns` (N, S', W) transposed."""
    n, frames, height, width, channels = clips.shape
    ends = clips.permute(0, 2, 1, 4, 3).reshape(n, height, -1).float()  # so that each product is one for all planes
    seen = (rows @ ends).view(n, -1, width) @ columns.transpose(1, 2)
    return seen.view(n, rows.shape[1], frames, channels, columns.shape[1]).permute(0, 3, 2, 1, 4)


class Colours(NamedTuple):
    """What becomes of colours x and their mean grey m over a clip: matrix x + lift m."""

    matrix: Tensor  # (N, 3, 3)
    lift: Tensor  # (N,)


def draw_colours(n: int, strength: float, grey: float, device: torch.device) -> Colours:
    changes = torch.rand(n, device=device) < JITTER
    brightness, contrast, saturation = (1 + sometimes(n, 1.0, VALUES * strength, device) * changes for _ in range(3))
    turn = sometimes(n, 1.0, 2 * math.pi * HUE * strength, device) * changes
    return colours(brightness, contrast, saturation, turn, torch.rand(n, device=device) < grey)


def colours(brightness: Tensor, contrast: Tensor, saturation: Tensor, turn: Tensor, grey: Tensor) -> Colours:
    """Three factors, an angle that turns hue, and whether it is grey in the end, (N,) each; in this order.

    A lift is the same in all channels, and so neither saturation nor hue nor grey changes it."""
    alone, luma = torch.eye(3, device=turn.device), _luma(turn.device).expand(3, 3)
    mean, across = torch.full_like(alone, 1 / 3), (alone.roll(1, 0) - alone.roll(-1, 0)) / math.sqrt(3)
    by, turn = saturation[:, None, None], turn[:, None, None]
    turned = mean + turn.cos() * (alone - mean) + turn.sin() * across
    matrix = turned @ (by * alone + (1 - by) * luma)
    matrix = torch.where(grey[:, None, None], luma @ matrix, matrix)
    return Colours(matrix * (brightness * contrast)[:, None, None], brightness * (1 - contrast))


def coloured(planes: Tensor, matrix: Tensor, lift: Tensor) -> Tensor:
    """Planes (N, 3, T, H, W) in the colours that `Colours` describes, clamped to 0 to 255."""
    flat = planes.flatten(2)
    lifted = (lift * (flat.mean(2) @ _luma(planes.device)))[:, None, None]
    return torch.baddbmm(lifted, matrix, flat).clamp_(0, 255).view(planes.shape)


def _luma(device: torch.device) -> Tensor:
    return table(LUMA, device) / 1000


def _mirrored(pixels: Tensor, chance: float) -> Tensor:
    """Columns (N, S) from 0 to S - 1, with this probability the other way round."""
    mirrored = torch.rand(len(pixels), 1, device=pixels.device) < chance
    return torch.where(mirrored, pixels.shape[1] - 1 - pixels, pixels)


def _evenly(n: int, least: float, most: float, device: torch.device) -> Tensor:
    return least + (most - least) * torch.rand(n, device=device)
