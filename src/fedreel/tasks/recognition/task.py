"""Video action recognition: a clip in, a class out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedreel.config import DataConfig, check_ranges
from fedreel.core.abilities import Embeds, Pooling
from fedreel.core.task import Examples, Outputs, Population, Tensors
from fedreel.errors import RecipeError
from fedreel.metrics.familiarity import projected
from fedreel.models.backbone import Backbone, BackboneConfig, Clips
from fedreel.models.classifier import Classifier
from fedreel.models.heads import THERE, Head
from fedreel.models.r3d import R3DConfig
from fedreel.tasks.vision.appearance import appearance
from fedreel.tasks.vision.clip_input import network_input, pooled, scale_card
from fedreel.tasks.vision.clips import ClipPopulation, open_clips
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.tasks.vision.contrast_views import SimCLR
from fedreel.tasks.vision.frozen import Look, frozen_examples

SEEN = 32  # numbers that what a frozen backbone sees is compared by, and as many for how that changes


@dataclass(frozen=True)
class Recognition(Contrasting, Embeds):
    """A network on `frames` evenly spaced frames of `size` pixels. R3D's published setting is 16 frames of 112 pixels
    (recipe recognition-r3d18)."""

    sends: ClassVar = {"frames": "count"}
    spaced: ClassVar = True

    backbone: BackboneConfig = field(default_factory=R3DConfig)
    frames: int = 8
    size: int = 32
    head: Head = "linear"  # on the mean of what the backbone sees; motion: on its mean and changes; changes: on where
    # and when how much changes, and on what is there; attentive: V-JEPA's
    head_width: int = 0  # of the attentive head; 0: as many numbers as the backbone has
    there: float = THERE  # of the head changes: how much what is there weighs beside what changes
    dropout: float = 0.0
    projection: int = 0  # > 0: two layers of this output before the classifier, where MOON contrasts
    shift: int = 0  # augmentation: shift clips by up to so many pixels
    kept_views: int = (
        1  # of each training clip, where the backbone is frozen and sees each once: the clip as it is, and
    )
    # random ones; an epoch sees one of them
    differences: bool = False  # the network sees differences of neighbouring frames, not frames

    def __post_init__(self) -> None:
        self.backbone.check_takes("clips")
        self.check_contrast()
        check_ranges(self, "task", size=(1, math.inf), dropout=(0, 1))
        check_ranges(self, "task", projection=(0, math.inf), shift=(0, math.inf))
        check_ranges(self, "task", head_width=(0, math.inf), kept_views=(1, math.inf), there=(0, math.inf))
        if self.kept_views > 1 and not self.shift:
            raise RecipeError(
                "all views of a clip would be the same",
                where="[task] kept_views",
                expected="1, or a shift of 1 or more",
                found=f"kept_views = {self.kept_views}, shift = 0",
            )
        check_ranges(self, "task", frames=(2 if self.differences else 1, math.inf))

    def network(self) -> Backbone:
        return self.backbone.built(Clips(self.frames - self.differences, self.size))

    def classifier(self) -> nn.Module:
        return Classifier(
            self.network(),
            self.classes,
            dropout=self.dropout,
            projection=self.projection,
            kind=self.head,
            pool_width=self.head_width,
            there=self.there,
        )

    def population(self, data: DataConfig, seed: int) -> Population:
        population = ClipPopulation(open_clips(data, self.size), data, self.frames, seed)
        self.check_classes(population.classes, data.source)
        return population

    def public(self, data: DataConfig, seed: int) -> Tensors:
        """Clips of data.public, or of another playground world, with their labels where they have any."""
        other = replace(data, source=data.public or "playground", seed=data.seed + 1, lists="", fold=1)
        source = open_clips(other, self.size)
        frames = source.stack(range(len(source.clips)), self.frames)
        labels = [source.labels.index(clip.label) if clip.label else -1 for clip in source.clips]
        return Tensors((torch.from_numpy(frames), torch.tensor(labels)))

    def prepared(self, model: nn.Module, examples: Examples, training: bool) -> Examples:
        """Clips of a frozen backbone as what it makes of them: (N, C, T, P) in place of (N, T, H, W, 3)."""
        if not (isinstance(model, Classifier) and isinstance(examples, Tensors) and model.backbone.frozen_encoder):
            return examples
        words = f"{self.backbone.input_scale} {self.size} differences={self.differences}"
        look = Look(self.labelled_view, self.network_input, words, f"shift {self.shift}")
        return frozen_examples(model, examples, look, self.kept_views if training else 1)

    def augment(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return batch if _is_prepared(batch) else super().augment(batch)

    def forward(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Outputs:
        if _is_prepared(batch):
            return Outputs(*model.answered(batch[0]))  # type: ignore[operator]
        return super().forward(model, batch)

    def ready(self, model: nn.Module, samples: Tensor) -> tuple[Tensor, ...]:
        if not (isinstance(model, Classifier) and model.backbone.frozen_encoder):
            return (samples,)
        return model.seen(self.network_input(samples)), samples.new_zeros(len(samples)), appearance(samples)

    def look_of(self, batch: tuple[Tensor, ...]) -> Tensor:
        """By the pixels and, where the backbone is frozen, by what it sees, which was made for more than the answer,
        and by how much of that changes, which is what heads go by."""
        if not _is_prepared(batch):
            return super().look_of(batch)
        seen, _, looks = batch
        steps = seen.diff(dim=2).abs() if seen.shape[2] > 1 else torch.zeros_like(seen)
        numbers = (projected(part.mean((2, 3)), SEEN) for part in (seen, steps))
        return torch.cat([looks.double().cpu(), *numbers], 1)

    def labelled_view(self, clips: Tensor) -> Tensor:
        if not self.shift:
            return clips
        dy, dx = (torch.randint(-self.shift, self.shift + 1, (len(clips), 1), device=clips.device) for _ in range(2))
        pixels = torch.arange(clips.shape[2], device=clips.device)
        rows = (pixels + dy).clamp(0, clips.shape[2] - 1)[:, None, :, None]
        columns = (pixels[: clips.shape[3]] + dx).clamp(0, clips.shape[3] - 1)[:, None, None, :]
        which = torch.arange(len(clips), device=clips.device)[:, None, None, None]
        times = torch.arange(clips.shape[1], device=clips.device)[None, :, None, None]
        return clips[which, times, rows, columns]

    @property
    def views(self) -> SimCLR:
        return SimCLR(self.size, self.strength, 0.0, (self.crop_scale, 1.0))  # mirrored, a motion is another one

    @property
    def side(self) -> int:
        return self.size

    def embed(self, model: nn.Module, clips: Tensor, pooling: Pooling = "mean") -> Tensor:
        return self.embeds(model, clips, (pooling,))[0]

    def embeds(self, model: nn.Module, clips: Tensor, poolings: Sequence[Pooling]) -> list[Tensor]:
        maps = model.backbone.features(self.network_input(clips))  # type: ignore[operator, union-attr]
        return [pooled(maps, pooling) for pooling in poolings]

    def card(self) -> dict[str, Any]:
        return {
            "input": {
                "frames": self.frames,
                "size": self.size,
                **scale_card(self.backbone.input_scale),
                "channels": "RGB",
            }
        }

    def network_input(self, clips: Tensor) -> Tensor:
        x = network_input(clips, self.backbone.input_scale)
        return x[:, :, 1:] - x[:, :, :-1] if self.differences else x


def _is_prepared(batch: tuple[Tensor, ...]) -> bool:
    """Whether it holds what a frozen backbone made of clips; clips themselves have five dimensions."""
    return batch[0].ndim == 4
