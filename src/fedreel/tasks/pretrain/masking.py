"""Filling in what is hidden (VideoMAE, Tong et al. 2022): tubes of a clip are left out before the encoder sees it, and
a light decoder says what their pixels are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from fedreel.models.backbone import Backbone
from fedreel.models.videomae import Decoder, VideoMAE, chosen_tokens
from fedreel.tasks.pretrain.pretexts import Pretext, Question, chosen, clamped, placed
from fedreel.tasks.vision.clip_views import Views


@dataclass(frozen=True)
class Fill(Pretext):
    """The target is the order (B, places) in which the places of a picture are taken: the first `visible` are seen,
    the others are hidden in all pictures of a clip. The answer is how far off each number of a hidden cube is."""

    frames: int
    views: Views
    grid: tuple[int, int, int]  # tokens in time, down and across
    share: float = 0.9  # of a picture's places that are hidden
    stride: int = 2  # every so many-th frame

    @property
    def span(self) -> int:
        return self.stride * (self.frames - 1) + 1

    @property
    def places(self) -> int:
        return self.grid[1] * self.grid[2]

    @property
    def visible(self) -> int:
        """Places that are seen: the authors' rounding."""
        return self.places - int(self.share * self.places)

    def pick(self, lengths: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        first = placed(lengths - self.span, torch.rand(len(lengths), generator=generator))
        return (clamped(first[:, None] + self.stride * torch.arange(self.frames), lengths),)

    def head(self, backbone: Backbone) -> nn.Module:
        return Decoder(cast(VideoMAE, backbone))

    def draw(self, clips: Tensor, *picked: Tensor) -> Question:
        return self.views.random(clips), self.order(len(clips), clips.device)

    def order(self, clips: int, device: torch.device) -> Tensor:
        return torch.rand(clips, self.places, device=device).argsort(1)

    def exam(self, windows: Tensor, lengths: Tensor) -> Iterator[Question]:
        """From the middle, with random tubes hidden."""
        first = placed(lengths - self.span)
        times = first[:, None] + self.stride * torch.arange(self.frames, device=windows.device)
        seen = self.views.centre(chosen(windows, clamped(times, lengths)))
        yield seen, self.order(len(windows), windows.device)

    def respond(
        self, model: nn.Module, clips: Tensor, scaled: Callable[[Tensor], Tensor], target: Tensor
    ) -> tuple[Tensor, Tensor]:
        visible, hidden = (tubes(part, self.grid) for part in target.split([self.visible, self.hidden], dim=1))
        seen = cast(VideoMAE, model.backbone).visible(scaled(clips), visible)
        said = cast(Decoder, model.head)(seen, visible, hidden)
        return seen.mean(1), said - chosen_tokens(cubes(clips, self.grid), hidden)

    @property
    def hidden(self) -> int:
        return self.places - self.visible

    def loss(self, answer: Tensor, target: Tensor) -> Tensor:
        return answer.square().mean()

    def metrics(self, answer: Tensor, target: Tensor) -> dict[str, float]:
        return {}  # the loss says it: numbers of a cube have variance 1, so 1 is what the cube's mean would give


def tubes(places: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """The tokens (B, T' * K) of these places (B, K) of a picture in all of a clip's T' steps."""
    starts = grid[1] * grid[2] * torch.arange(grid[0], device=places.device)
    return (starts[None, :, None] + places[:, None, :]).flatten(1)


def cubes(clips: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """The numbers (B, tokens, N) of each token's cube of clips (B, T, H, W, 3) from 0 to 255, each colour of a cube
    brought to mean 0 and deviation 1."""
    steps, rows, columns = grid
    t, h, w = (length // parts for length, parts in zip(clips.shape[1:4], grid))
    split = (clips.float() / 255).reshape(len(clips), steps, t, rows, h, columns, w, 3)
    inside = split.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(len(clips), steps * rows * columns, t * h * w, 3)
    spread = inside.var(dim=2, keepdim=True).sqrt()
    return ((inside - inside.mean(dim=2, keepdim=True)) / (spread + 1e-6)).flatten(2)
