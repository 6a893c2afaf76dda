"""Self-supervised learning from video: a backbone learns by answering questions about unlabelled clips."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedreel.config import DataConfig, check_ranges
from fedreel.core.abilities import Accountable, Embeds, Pooling, Trials
from fedreel.core.task import ClientData, Examples, Outputs, Population, Task
from fedreel.errors import RecipeError
from fedreel.machine.device import seeded
from fedreel.models.backbone import BackboneConfig, Clips, untaught
from fedreel.models.r3d import R3D, R3DConfig
from fedreel.models.videomae import VideoMAEConfig
from fedreel.registry import BACKBONES
from fedreel.tasks.pretrain.heads import PretextNetwork, strided
from fedreel.tasks.pretrain.masking import Fill
from fedreel.tasks.pretrain.pretexts import Catch, Choice, Order, Pretext, Question, Speed
from fedreel.tasks.pretrain.windows import WindowPopulation, Windows
from fedreel.tasks.vision.appearance import appearance
from fedreel.tasks.vision.clip_input import Norm, middle, network_input, pooled, scale_card, scale_of
from fedreel.tasks.vision.clip_views import Views
from fedreel.tasks.vision.clips import open_clips
from fedreel.tasks.vision.footage import Held, Stored

NAMES = {"ctp": "Catch-the-Patch", "mae": "VideoMAE's pretext"}
Batch = tuple[Tensor, ...]  # a question, as it goes into the network, or clips as they lie and what was picked


@dataclass(frozen=True)
class Pretrain(Task, Embeds, Accountable):
    """A network on clips of `frames` frames of `size` pixels. The pretexts are `speed` (at which of seven speeds is it
    played), `vcop` (in which order are three clips; crops from random places but no scales, flips or jitter), `ctp`
    (Catch-the-Patch: where do moving patches go; for r3d, whose map it wants twice as fine) and `mae` (VideoMAE: what
    is in the tubes that were left out; for videomae). The paper setting is 16 frames of 112 pixels and r3d with
    bn_eps = 1e-3 (recipe fedvssl-paper)."""

    sends: ClassVar = {"frames": "count"}
    metrics: ClassVar = ("loss", "accuracy", "iou")
    ranges: ClassVar = {"accuracy": (0.0, 1.0), "iou": (0.0, 1.0)}

    pretext: Literal["speed", "vcop", "ctp", "mae"] = "speed"
    backbone: BackboneConfig = field(default_factory=R3DConfig)
    frames: int = 8
    size: int = 32
    stored: int = 0  # side that clips are kept at, to be cropped from; 0: 8/7 of the size, as 128 pixels for 112
    scales: tuple[float, ...] = (1.0, 1.143, 1.286)  # sides before the crop, in multiples of it: 112, 128, 144 for 112
    flip: float = 0.5
    jitter: float = 0.2  # probability of a change of brightness, of contrast, of hue (ctp: half of it)
    gap: int = 4  # vcop: frames between clips
    mask: float = 0.9  # mae: share of a picture's places that are hidden, the same ones in all of a clip
    stride: int = 2  # mae: every so many-th frame; the authors have 4 for Kinetics
    dropout: float = 0.5
    norm: Norm = "backbone"  # what colours are brought to: see scale_of; Catch-the-Patch's authors have imagenet
    differences: bool = False  # the network sees differences of neighbouring frames, not frames
    most: int = 0  # clips of each part of an owner's, or of a downstream set: spread over all; 0: all

    def __post_init__(self) -> None:
        self.backbone.check_takes("clips")
        if self.tune == "head":
            raise untaught("pretraining teaches the backbone")
        self._check_pretext()
        check_ranges(self, "task", frames=(2, math.inf), size=(1, math.inf), gap=(0, math.inf), most=(0, math.inf))
        check_ranges(self, "task", flip=(0, 1), jitter=(0, 1), dropout=(0, 1))
        if 0 != self.stored < self.size:
            raise RecipeError(
                "crops would be larger than the clips",
                where="[task] stored",
                expected=f"{self.size} or more, or 0",
                found=str(self.stored),
            )
        if not self.scales or not min(self.scales) >= 1:
            raise RecipeError(
                "crops would be larger than the clips",
                where="[task] scales",
                expected="one or more numbers that are 1 or more",
                found=str(list(self.scales)),
            )

    def _check_pretext(self) -> None:
        """Raise unless the backbone can do what the pretext wants of it."""
        wants: dict[str, tuple[type[BackboneConfig], str, str]] = {
            "ctp": (R3DConfig, "r3d", "a map twice as fine as this backbone's"),
            "mae": (VideoMAEConfig, "videomae", "a backbone that can look at some of its tokens alone"),
        }
        cls, name, what = wants.get(self.pretext, (BackboneConfig, "", ""))
        if not isinstance(self.backbone, cls):
            raise RecipeError(
                f"{NAMES[self.pretext]} needs {what}",
                where="[task.backbone] name",
                expected=f"{name}, or the pretext speed or vcop",
                found=BACKBONES.name_of(type(self.backbone)),
            )
        if self.pretext != "mae":
            return
        check_ranges(self, "task", mask=(0, 1), stride=(1, math.inf))
        if self.differences:
            raise RecipeError(
                "to fill in pictures, the network must see pictures",
                where="[task] differences",
                expected="false with the pretext mae",
            )
        asks = self._asks
        if isinstance(asks, Fill) and not 0 < asks.visible < asks.places:
            raise RecipeError(
                "something must be seen, and something be hidden",
                where="[task] mask",
                expected=f"a share that leaves 1 to {asks.places - 1} of the {asks.places} tokens of a picture",
                found=f"{self.mask}, which leaves {asks.visible}",
                hint="a smaller task.backbone.patch or a larger task.size makes more tokens",
            )

    def model(self) -> PretextNetwork:
        backbone = self.backbone.built(Clips(self.frames - self.differences, self.size))
        if self._asks.fine:
            assert isinstance(backbone, R3D)
            backbone.last_stride = 1
        return PretextNetwork(backbone, self._asks.head(backbone))

    def population(self, data: DataConfig, seed: int) -> Population:
        return WindowPopulation(open_clips(data, self.side, "task.stored", self.most), data, self._asks, seed)

    def windows(self, footage: Held | Stored) -> Windows:
        """Clips as examples of this task, wherever they lie."""
        return Windows(footage, self._asks)

    def augment(self, batch: Batch) -> Question:
        return self._asks.draw(*batch)

    def forward(self, model: nn.Module, batch: Batch) -> Outputs:
        inputs, target = self._question(batch)
        return Outputs(*self._asks.respond(model, inputs, self._input, target))

    def loss(self, outputs: Outputs, batch: Batch) -> Tensor:
        return self._asks.loss(outputs.logits, self._question(batch)[1])

    def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
        totals: Counter[str] = Counter()
        asked = 0
        assert isinstance(examples, Windows)
        for number, (windows, lengths) in enumerate(examples.windows(batch_size)):
            with seeded(number, windows.device):
                for inputs, target in self._asks.exam(windows, lengths):
                    said = self.forward(model, (inputs, target)).logits
                    found = {"loss": float(self._asks.loss(said, target)), **self._asks.metrics(said, target)}
                    totals.update({name: len(target) * value for name, value in found.items()})
                    asked += len(target)
        return {**{name: total / asked for name, total in totals.items()}, "n": float(len(examples))}

    def trials(self, model: nn.Module, data: ClientData, batch_size: int) -> Iterator[Trials]:
        """Of pretexts whose answer is one of a few classes; a clip's score is the share of its questions answered."""
        examples = data.test
        assert isinstance(examples, Windows)
        if not isinstance(self._asks, Choice):
            return
        for number, (windows, lengths) in enumerate(examples.windows(batch_size)):
            with seeded(number, windows.device):
                asked = [*self._asks.exam(windows, lengths)]
            right = [self.forward(model, (inputs, target)).logits.argmax(1) == target for inputs, target in asked]
            scores = torch.stack(right).double().mean(0)
            yield Trials(scores, torch.full_like(scores, 1 / self._asks.classes))

    def looks(
        self, model: nn.Module, examples: Examples, batch_size: int, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        assert isinstance(examples, Windows)
        for windows, *_ in examples.windows(batch_size):
            yield appearance(windows[:, : self.frames])

    def look(self, model: nn.Module, samples: Tensor) -> Tensor:
        return appearance(samples)

    def embed(self, model: nn.Module, clips: Tensor, pooling: Pooling = "mean") -> Tensor:
        return self.embeds(model, clips, (pooling,))[0]

    def embeds(self, model: nn.Module, clips: Tensor, poolings: Sequence[Pooling]) -> list[Tensor]:
        with strided(model.backbone) as backbone:  # type: ignore[arg-type]
            maps = backbone.features(self._input(middle(clips, self.size)))
            return [pooled(maps, pooling) for pooling in poolings]

    def card(self) -> dict[str, Any]:
        given = {
            "frames": self.frames,
            "size": self.size,
            **scale_card(scale_of(self.norm, self.backbone)),
            "channels": "RGB",
        }
        return {"input": given, "pretext": self.pretext}

    @property
    def side(self) -> int:
        return self.stored or round(self.size * 8 / 7)

    @property
    def crops(self) -> tuple[int, tuple[float, ...]]:
        return self.size, self.scales

    @cached_property
    def _asks(self) -> Pretext:
        if self.pretext == "vcop":
            return Order(self.frames, Views(self.size, (self.side / self.size,)), self.dropout, self.gap)
        views = Views(self.size, self.scales, self.flip, self.jitter)
        if self.pretext == "mae":
            assert isinstance(self.backbone, VideoMAEConfig)
            sample = Clips(self.frames, self.size)
            self.backbone.check_sample(sample, None)
            views = Views(self.size, self.scales, self.flip)  # colours are what is asked for: as they are
            return Fill(self.frames, views, self.backbone.grid(sample), self.mask, self.stride)
        if self.pretext == "ctp":
            return Catch(self.frames, views, steps=math.ceil((self.frames - self.differences) / 8))
        return Speed(self.frames, views, self.dropout)

    def _input(self, clips: Tensor) -> Tensor:
        x = network_input(clips, scale_of(self.norm, self.backbone))
        return x[:, :, 1:] - x[:, :, :-1] if self.differences else x

    def _question(self, batch: Batch) -> Question:
        """Methods may ask for the loss of batches as they lie; then their views are the same every time."""
        if batch[0].is_floating_point():
            inputs, target = batch
            return inputs, target
        with seeded(0, batch[0].device):
            return self._asks.draw(*batch)
