"""Pretexts: questions about clips whose answers need no labels, since the question's maker knows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.tasks.pretrain.heads import OrderHead, SpeedHead
from fedreel.tasks.pretrain.patches import (
    CURVES,
    between,
    decode,
    draw,
    draw_boxes,
    key_frames,
    mean_iou,
    paste,
    targets,
    tracking_loss,
)
from fedreel.tasks.pretrain.tracking import TrackHead
from fedreel.tasks.vision.clip_views import Views, below, brighter, hue_and_saturation, multiplied, recoloured, table

Question = tuple[Tensor, Tensor]
"""What the network sees, and what it is to find out. It sees clips (B, T, h, w, 3), or several of each sample
(B, clips, T, h, w, 3), as floats from 0 to 255; the other has B rows too."""


class Pretext(ABC):
    """Subclasses are frozen dataclasses. A head reads maps of the backbone, (B, C, T', h', w'), or (B * clips, ...)
    with the clips of one sample after the other."""

    fine: ClassVar[bool] = False  # whether stage 4 of the backbone is without its spatial stride

    @property
    @abstractmethod
    def span(self) -> int:
        """Consecutive frames that a question is made of."""

    @abstractmethod
    def head(self, channels: int) -> nn.Module:
        """A fresh head for a backbone of so many channels."""

    @abstractmethod
    def draw(self, windows: Tensor) -> Question:
        """A random question about each window (B, span, H, W, 3) of bytes. Part of the training step: all random
        numbers are torch's, drawn on the windows' device, and nothing may wait for the device."""

    @abstractmethod
    def exam(self, windows: Tensor) -> Iterator[Question]:
        """Questions to test with, the same every time: torch's random numbers, where they are used, are seeded."""

    def answer(self, head: nn.Module, maps: Tensor, target: Tensor) -> Tensor:
        """What the head says (B, ...). Of the target it may be shown what belongs to the question."""
        return head(maps)

    @abstractmethod
    def loss(self, answer: Tensor, target: Tensor) -> Tensor:
        """Mean loss of a batch."""

    @abstractmethod
    def metrics(self, answer: Tensor, target: Tensor) -> dict[str, float]:
        """Mean metrics of a batch beside the loss."""


@dataclass(frozen=True)
class Choice(Pretext):
    """Pretexts whose answer is one of a few classes."""

    frames: int
    views: Views
    dropout: float = 0.5

    classes: ClassVar[int]

    @abstractmethod
    def show(self, windows: Tensor, target: Tensor, random: bool) -> Tensor:
        """Views that are of these classes: random ones, or those in the middle of time and space."""

    def draw(self, windows: Tensor) -> Question:
        target = torch.randint(self.classes, (len(windows),), device=windows.device)
        return self.show(windows, target, random=True), target

    def exam(self, windows: Tensor) -> Iterator[Question]:
        """Each window in every class."""
        for k in range(self.classes):
            target = torch.full((len(windows),), k, device=windows.device)
            yield self.show(windows, target, random=False), target

    def loss(self, answer: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(answer, target)

    def metrics(self, answer: Tensor, target: Tensor) -> dict[str, float]:
        return {"accuracy": float((answer.argmax(1) == target).float().mean())}


@dataclass(frozen=True)
class Speed(Choice):
    """At which speed is the clip played: every so many-th frame, backwards if below 0; 0 is a still picture."""

    strides: ClassVar = (-4, -2, -1, 0, 1, 2, 4)
    classes: ClassVar = len(strides)

    @property
    def span(self) -> int:
        return max(self.strides) * (self.frames - 1) + 1

    def head(self, channels: int) -> nn.Module:
        return SpeedHead(channels, self.classes, self.dropout)

    def show(self, windows: Tensor, target: Tensor, random: bool) -> Tensor:
        stride = table(self.strides, windows.device)[target]
        reach = stride.abs() * (self.frames - 1) + 1
        earliest = below(self.span - reach + 1) if random else (self.span - reach) // 2
        first = torch.where(stride < 0, earliest + reach - 1, earliest)
        times = first[:, None] + stride[:, None] * torch.arange(self.frames, device=windows.device)
        clips = windows[torch.arange(len(windows), device=windows.device)[:, None], times]
        return self.views.random(clips) if random else self.views.centre(clips)


@dataclass(frozen=True)
class Order(Choice):
    """In which order are three clips of a video shown (VCOP). Class k is the k-th permutation p in lexicographic order:
    the i-th clip shown is the p[i]-th in time. One crop for all, so that places give nothing away."""

    gap: int = 8  # frames between clips

    orders: ClassVar = tuple(permutations(range(3)))
    classes: ClassVar = len(orders)

    @property
    def span(self) -> int:
        return 3 * self.frames + 2 * self.gap

    def head(self, channels: int) -> nn.Module:
        return OrderHead(channels, 3, self.classes, self.dropout)

    def show(self, windows: Tensor, target: Tensor, random: bool) -> Tensor:
        device = windows.device
        order = table([clip for order in self.orders for clip in order], device).view(-1, 3)[target]
        times = order[:, :, None] * (self.frames + self.gap) + torch.arange(self.frames, device=device)
        clips = windows[torch.arange(len(windows), device=device)[:, None], times.flatten(1)]
        seen = self.views.random(clips) if random else self.views.centre(clips)
        return seen.unflatten(1, (3, self.frames))


@dataclass(frozen=True)
class Catch(Pretext):
    """Where do patches go that are cut out of the clip and move over it (Catch-the-Patch). The target is the boxes
    (B, patches, T, 4) in pixels, of which the head is shown the first. Frames are one to five apart, unevenly."""

    frames: int
    views: Views
    steps: int  # of time in the backbone's last map

    fine: ClassVar = True
    widest: ClassVar = 5

    @property
    def span(self) -> int:
        return self.widest * self.frames

    def head(self, channels: int) -> nn.Module:
        return TrackHead(channels, self.frames, self.steps, hidden=channels)

    def draw(self, windows: Tensor) -> Question:
        n, device = len(windows), windows.device
        stride = torch.randint(1, self.widest + 1, (n, 1), device=device)
        times = below(self.span - stride * self.frames + 1) + stride * torch.arange(self.frames, device=device)
        times = times + below(stride.expand(n, self.frames))
        clips = self.views.cropped(windows[torch.arange(n, device=device)[:, None], times])
        boxes = draw_boxes(n, self.frames, self.views.size, device=device)
        return wavering(paste(clips, boxes), self.views.jitter), boxes

    def exam(self, windows: Tensor) -> Iterator[Question]:
        """Every third frame of the middle, with random patches."""
        stride = 3
        clips = windows[:, (self.span - stride * self.frames) // 2 :: stride][:, : self.frames]
        boxes = draw_boxes(len(windows), self.frames, self.views.size, device=windows.device)
        yield paste(self.views.centre(clips), boxes), boxes

    def answer(self, head: nn.Module, maps: Tensor, target: Tensor) -> Tensor:
        return head(maps, target[:, :, 0], self.views.size)

    def loss(self, answer: Tensor, target: Tensor) -> Tensor:
        return tracking_loss(answer, targets(target, self.views.size))

    def metrics(self, answer: Tensor, target: Tensor) -> dict[str, float]:
        return {"iou": float(mean_iou(decode(answer, target[:, :, 0], self.views.size), target))}


def wavering(clips: Tensor, chance: float) -> Tensor:
    """Catch-the-Patch's colours: hue and saturation change with half the probability, brightness and contrast with all
    of it, and these change again along the clip."""
    clips = recoloured(clips, *hue_and_saturation(len(clips), chance / 2, clips.device))
    clips = brighter(clips, _along(clips, chance, 30.0))
    return multiplied(clips, _along(clips, chance, 0.12).exp())


def _along(clips: Tensor, chance: float, most: float) -> Tensor:
    """A number for each frame (N, T), up to `most` at key frames, or 0 for clips that are not to change."""
    n, frames = clips.shape[:2]
    keys = key_frames((n,), frames, (0.7, 0.3), clips.device)
    curve = draw((0, 1, 2), (n, keys.shape[1] - 1), clips.device, CURVES)
    changes = torch.rand(n, 1, device=clips.device) < chance
    return between((2 * torch.rand_like(keys) - 1) * most, keys, frames, curve) * changes
