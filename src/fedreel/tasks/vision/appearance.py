"""What images and clips look like, whatever they show: light, colour, detail at several scales, how much of that is
edges, and how much changes from frame to frame."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

VERSION = 1  # of what `appearance` gives; another one makes nothing kept before fit
LUMA = (0.299, 0.587, 0.114)
SCALES = 3  # each half as fine as the one before
FAINT = 1e-5  # of a squared difference of neighbours: less is as good as none


def appearance(pixels: Tensor) -> Tensor:
    """Of clips (N, T, H, W, 3) or images (N, H, W, 3), of bytes or of floats up to 255: (N, D)."""
    clips = pixels if pixels.ndim == 5 else pixels[:, None]
    return torch.stack([_one(clip) for clip in clips])


def _one(clip: Tensor) -> Tensor:
    rgb = clip.float() / 255
    light = rgb @ torch.tensor(LUMA, device=clip.device)
    blue, red = rgb[..., 2] - light, rgb[..., 0] - light
    found = [light.mean(), light.std(), blue.mean(), blue.std(), red.mean(), red.std()]
    above, below = light.mean(0).tensor_split(2)
    found += [above.mean() - below.mean()]
    return torch.stack([*found, *_details(light[:, None])])


def _details(light: Tensor) -> list[Tensor]:
    """For each scale how much neighbours differ from left to right, in logarithms of squares, beyond the finest in
    comparison with the finer one; in comparison with that, from top to bottom and, of clips, from frame to frame; and
    how much of it is in few places, as edges are and noise is not."""
    found: list[Tensor] = []
    finer: Tensor | None = None
    for _ in range(SCALES):
        across, down, along = (light.diff(dim=d).square() + FAINT for d in (3, 2, 0))
        level = across.mean().log()
        found += [level if finer is None else finer - level, down.mean().log() - level]
        found += [along.mean().log() - level] if len(light) > 1 else []
        found += [level - across.log().mean(), down.mean().log() - down.log().mean()]
        finer = level
        light = F.avg_pool2d(light, 2, ceil_mode=True) if min(light.shape[2:]) > 2 else light
    return found
