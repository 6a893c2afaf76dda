"""Random views of clips: crops, flips and colours of a whole batch at once, on its device, as a CUDA graph can record
them (nothing waits for the device, no shape depends on what is drawn)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.tasks.vision.clip_input import middle

BRIGHTNESS = 32.0  # most that is added, of 255
CONTRAST, SATURATION = 0.2, 0.1  # most that the logarithm of the factor is
HUE = math.pi * 24 / 180  # 12 of OpenCV's 180 steps of hue


@dataclass(frozen=True)
class Views:
    """What is seen of clips (N, T, H, W, 3) of bytes: clips (N, T, size, size, 3), floats from 0 to 255. All frames of
    a clip are treated alike."""

    size: int
    scales: tuple[float, ...] = (1.0,)  # sides that clips are brought to before the crop, in multiples of its side
    flip: float = 0.0  # probability
    jitter: float = 0.0  # probability of a change of brightness; of contrast; of hue and saturation

    def random(self, clips: Tensor) -> Tensor:
        seen = self.cropped(clips)
        return jittered(seen, self.jitter) if self.jitter else seen

    def cropped(self, clips: Tensor) -> Tensor:
        """Random views in their own colours."""
        return cropped(clips, self.size, [round(self.size * scale) for scale in self.scales], self.flip)

    def centre(self, clips: Tensor) -> Tensor:
        """The pixels in the middle, as they are."""
        return middle(clips, self.size).float()


def cropped(clips: Tensor, size: int, sides: Sequence[int], flip: float) -> Tensor:
    """Clips scaled so that both sides have one of `sides` pixels, then a square of `size` pixels from a random place of
    them, mirrored with probability `flip`."""
    n, frames, height, width, channels = clips.shape
    device = clips.device
    side = table(sides, device)[torch.randint(len(sides), (n,), device=device)]
    top, left = below(side - size + 1), below(side - size + 1)
    pixels = torch.arange(size, device=device).expand(n, size)
    columns = torch.where(torch.rand(n, 1, device=device) < flip, size - 1 - pixels, pixels)
    y, x = ((2 * (at[:, None] + p) + 1) / side[:, None] - 1 for at, p in ((top, pixels), (left, columns)))
    grid = torch.stack([x[:, None, :].expand(n, size, size), y[:, :, None].expand(n, size, size)], dim=3)
    planes = clips.permute(0, 1, 4, 2, 3).reshape(n, frames * channels, height, width).float()
    seen = F.grid_sample(planes, grid, padding_mode="border", align_corners=False)
    return seen.view(n, frames, channels, size, size).permute(0, 1, 3, 4, 2)


def jittered(clips: Tensor, chance: float) -> Tensor:
    """Brightness, contrast, and hue with saturation: each changes with this probability, evenly up to its most."""
    n, device = len(clips), clips.device
    clips = brighter(clips, sometimes(n, chance, BRIGHTNESS, device))
    clips = multiplied(clips, sometimes(n, chance, CONTRAST, device).exp())
    return recoloured(clips, *hue_and_saturation(n, chance, device))


def hue_and_saturation(n: int, chance: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random angles and factors for `recoloured`; 0 and 1 but for a share of n clips."""
    changes = torch.rand(n, device=device) < chance
    turn, factor = sometimes(n, 1.0, HUE, device), sometimes(n, 1.0, SATURATION, device)
    return turn * changes, (factor * changes).exp()


def sometimes(n: int, chance: float, most: float, device: torch.device) -> Tensor:
    """n numbers: with this probability evenly from -most to most, else 0."""
    return (2 * torch.rand(n, device=device) - 1) * most * (torch.rand(n, device=device) < chance)


def brighter(clips: Tensor, by: Tensor) -> Tensor:
    """`by` is added: a number of each clip (N,) or of each frame (N, T)."""
    return (clips + _of_clips(by)).clamp(0, 255)


def multiplied(clips: Tensor, by: Tensor) -> Tensor:
    """Likewise, a factor."""
    return (clips * _of_clips(by)).clamp(0, 255)


def recoloured(clips: Tensor, turn: Tensor, saturation: Tensor) -> Tensor:
    """Colours turned about the grey axis of RGB by angles (a third of a circle takes red to green), their distance from
    it times `saturation`: close to a shift of hue in HSV, but linear, so that it is a few operations."""
    grey = clips.mean(4, keepdim=True)
    colour = clips - grey
    across = (colour.roll(1, 4) - colour.roll(-1, 4)) / math.sqrt(3)
    turned = _of_clips(saturation * turn.cos()) * colour + _of_clips(saturation * turn.sin()) * across
    return (grey + turned).clamp(0, 255)


def below(limits: Tensor) -> Tensor:
    """A random whole number from 0 to limit - 1 for each limit."""
    drawn = (torch.rand(limits.shape, device=limits.device) * limits).long()
    return torch.minimum(drawn, limits - 1)  # a product close to the limit may be rounded to it


def table(values: Sequence[int], device: torch.device) -> Tensor:
    """The values on a device, without a copy from the host: that would wait for the device."""
    return torch.stack([torch.full((), value, device=device) for value in values])


def _of_clips(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1, 1, 1, 1)
