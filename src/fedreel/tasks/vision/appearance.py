"""What images and clips look like, whatever they show: light, colour, detail at several scales, how much of that is
edges, and how much changes from frame to frame."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

VERSION = 1  # of what `appearance` gives; another one makes nothing kept before fit
LUMA = (0.299, 0.587, 0.114)
SCALES = 3  # each half as fine as the one before
AT_ONCE = 16  # clips that are looked at together
FAINT = 1e-5  # of a squared difference of neighbours: less is as good as none


def appearance(pixels: Tensor) -> Tensor:
    """Of clips (N, T, H, W, 3) or images (N, H, W, 3), of bytes or of floats up to 255: (N, D)."""
    clips = pixels if pixels.ndim == 5 else pixels[:, None]
    return torch.cat([_some(few) for few in clips.split(AT_ONCE)]) if len(clips) else torch.zeros(0, 1)


def _some(clips: Tensor) -> Tensor:
    rgb = clips.float() / 255
    light = rgb @ torch.tensor(LUMA, device=clips.device)  # (N, T, H, W)
    blue, red = rgb[..., 2] - light, rgb[..., 0] - light
    found = [number for values in (light, blue, red) for number in (_mean(values), values.flatten(1).std(1))]
    above, below = light.tensor_split(2, dim=2)
    return torch.stack([*found, _mean(above) - _mean(below), *_details(light)], 1)


def _details(light: Tensor) -> list[Tensor]:
    """For each scale how much neighbours differ from left to right, in logarithms of squares, beyond the finest in
    comparison with the finer one; in comparison with that, from top to bottom and, of clips, from frame to frame; and
    how much of it is in few places, as edges are and noise is not."""
    found: list[Tensor] = []
    finer: Tensor | None = None
    for _ in range(SCALES):
        across, down, along = (light.diff(dim=d).square() + FAINT for d in (3, 2, 1))
        level = _mean(across).log()
        found += [level if finer is None else finer - level, _mean(down).log() - level]
        found += [_mean(along).log() - level] if light.shape[1] > 1 else []
        found += [level - _mean(across.log()), _mean(down).log() - _mean(down.log())]
        finer = level
        light = F.avg_pool2d(light, 2, ceil_mode=True) if min(light.shape[2:]) > 2 else light
    return found


def _mean(values: Tensor) -> Tensor:
    """Of each clip."""
    return values.flatten(1).mean(1)
