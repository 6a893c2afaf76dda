"""Pretexts: questions about clips whose answers need no labels, since the question's maker knows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.models.backbone import Backbone
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
from fedreel.tasks.vision.clip_input import pooled
from fedreel.tasks.vision.clip_views import Views, brighter, hue_and_saturation, multiplied, recoloured, table

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
        """Consecutive frames that the widest question is made of."""

    @abstractmethod
    def pick(self, lengths: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Which frames (N, T) of clips of such lengths (N,) a random question is about, from anywhere in the clip; then
        what else `draw` is given. A clip that is too short stands still at its last frame. On the host: only frames
        that are picked are read."""

    @abstractmethod
    def head(self, backbone: Backbone) -> nn.Module:
        """A fresh head for a backbone."""

    @abstractmethod
    def draw(self, clips: Tensor, *picked: Tensor) -> Question:
        """The question about each clip (B, T, H, W, 3) of bytes that was picked, in a random view. Part of the training
        step: all random numbers are torch's, drawn on the clips' device, and nothing may wait for the device."""

    @abstractmethod
    def exam(self, windows: Tensor, lengths: Tensor) -> Iterator[Question]:
        """Questions about windows (B, span, H, W, 3) to test with, the same every time; `lengths` (B,) is from where on
        a window stands still. torch's random numbers, where they are used, are seeded."""

    def respond(
        self, model: nn.Module, clips: Tensor, scaled: Callable[[Tensor], Tensor], target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Features (N, C) of the clips that a question shows, which `scaled` makes the network's input of, and what the
        head says about them (B, ...)."""
        maps = model.backbone.features(scaled(clips.flatten(0, -5)))  # type: ignore[operator, union-attr]
        return pooled(maps, "mean"), self.answer(model.head, maps, target)  # type: ignore[arg-type]

    def answer(self, head: nn.Module, maps: Tensor, target: Tensor) -> Tensor:
        """What the head says (B, ...) of the maps. Of the target it may be shown what belongs to the question."""
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
    def times(self, lengths: Tensor, target: Tensor, share: Tensor | None = None) -> Tensor:
        """Frames (N, T) of clips of such lengths that are of these classes: from the middle, or after this share (N,)
        of the places there are."""

    def shaped(self, clips: Tensor) -> Tensor:
        """Views (B, T, h, w, 3) as the network gets them."""
        return clips

    def pick(self, lengths: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        target = torch.randint(self.classes, (len(lengths),), generator=generator)
        return self.times(lengths, target, torch.rand(len(lengths), generator=generator)), target

    def draw(self, clips: Tensor, *picked: Tensor) -> Question:
        return self.shaped(self.views.random(clips)), picked[0]

    def exam(self, windows: Tensor, lengths: Tensor) -> Iterator[Question]:
        """Each window in every class."""
        for k in range(self.classes):
            target = torch.full((len(windows),), k, device=windows.device)
            yield self.shaped(self.views.centre(chosen(windows, self.times(lengths, target)))), target

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

    def head(self, backbone: Backbone) -> nn.Module:
        return SpeedHead(backbone.out_channels, self.classes, self.dropout)

    def times(self, lengths: Tensor, target: Tensor, share: Tensor | None = None) -> Tensor:
        stride = table(self.strides, lengths.device)[target]
        reach = stride.abs() * (self.frames - 1) + 1
        earliest = placed(lengths - reach, share)
        first = torch.where(stride < 0, earliest + reach - 1, earliest)
        return clamped(first[:, None] + stride[:, None] * torch.arange(self.frames, device=lengths.device), lengths)


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

    def head(self, backbone: Backbone) -> nn.Module:
        return OrderHead(backbone.out_channels, 3, self.classes, self.dropout)

    def times(self, lengths: Tensor, target: Tensor, share: Tensor | None = None) -> Tensor:
        device = lengths.device
        order = table([clip for order in self.orders for clip in order], device).view(-1, 3)[target]
        within = order[:, :, None] * (self.frames + self.gap) + torch.arange(self.frames, device=device)
        return clamped(placed(lengths - self.span, share)[:, None] + within.flatten(1), lengths)

    def shaped(self, clips: Tensor) -> Tensor:
        return clips.unflatten(1, (3, self.frames))


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
        return self.widest * (self.frames - 1) + 1

    def head(self, backbone: Backbone) -> nn.Module:
        return TrackHead(backbone.out_channels, self.frames, self.steps, hidden=backbone.out_channels)

    def pick(self, lengths: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The authors' sampler: the jitter of the last frame may reach beyond the clip, where it stands still."""
        n = len(lengths)
        stride = torch.randint(1, self.widest + 1, (n, 1), generator=generator)
        reach = stride[:, 0] * (self.frames - 1) + 1
        first = placed(lengths - reach, torch.rand(n, generator=generator))
        jitter = (torch.rand(n, self.frames, generator=generator) * stride).long()
        return (clamped(first[:, None] + stride * torch.arange(self.frames) + jitter, lengths),)

    def draw(self, clips: Tensor, *picked: Tensor) -> Question:
        boxes = draw_boxes(len(clips), self.frames, self.views.size, device=clips.device)
        return wavering(paste(self.views.cropped(clips), boxes), self.views.jitter), boxes

    def exam(self, windows: Tensor, lengths: Tensor) -> Iterator[Question]:
        """Every third frame of the middle, with random patches."""
        stride, device = 3, windows.device
        first = placed(lengths - stride * (self.frames - 1) - 1)
        times = clamped(first[:, None] + stride * torch.arange(self.frames, device=device), lengths)
        boxes = draw_boxes(len(windows), self.frames, self.views.size, device=device)
        yield paste(self.views.centre(chosen(windows, times)), boxes), boxes

    def answer(self, head: nn.Module, maps: Tensor, target: Tensor) -> Tensor:
        return head(maps, target[:, :, 0], self.views.size)

    def loss(self, answer: Tensor, target: Tensor) -> Tensor:
        return tracking_loss(answer, targets(target, self.views.size))

    def metrics(self, answer: Tensor, target: Tensor) -> dict[str, float]:
        return {"iou": float(mean_iou(decode(answer, target[:, :, 0], self.views.size), target))}


def placed(spare: Tensor, share: Tensor | None = None) -> Tensor:
    """Where something begins that leaves `spare` frames of a clip over: in the middle, or after a share of them."""
    spare = spare.clamp(min=0)
    return spare // 2 if share is None else torch.minimum((share * (spare + 1)).long(), spare)


def clamped(times: Tensor, lengths: Tensor) -> Tensor:
    """Frames (N, T) of clips that stand still after their last."""
    return torch.minimum(times, lengths[:, None] - 1)


def chosen(windows: Tensor, times: Tensor) -> Tensor:
    """These frames (B, T) of windows."""
    return windows[torch.arange(len(windows), device=windows.device)[:, None], times]


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
