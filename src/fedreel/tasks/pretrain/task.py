"""Self-supervised learning from video: a backbone learns by answering questions about unlabelled clips."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from fedreel.config import DataConfig, check_ranges
from fedreel.core.abilities import Embeds
from fedreel.core.task import Examples, Outputs, Population, Task
from fedreel.data.shards import Shards
from fedreel.errors import RecipeError
from fedreel.machine.device import seeded
from fedreel.models.backbone import BackboneConfig, Clips
from fedreel.models.r3d import R3D, R3DConfig
from fedreel.registry import BACKBONES
from fedreel.tasks.pretrain.heads import PretextNetwork, strided
from fedreel.tasks.pretrain.pretexts import Catch, Order, Pretext, Question, Speed
from fedreel.tasks.pretrain.windows import WindowPopulation, Windows
from fedreel.tasks.vision.clip_input import Norm, middle, network_input, pooled, scale_card, scale_of
from fedreel.tasks.vision.clip_views import Views
from fedreel.tasks.vision.clips import open_clips

Batch = tuple[Tensor, ...]  # a question, as it goes into the network, or clips as they lie and what was picked


@dataclass(frozen=True)
class Pretrain(Task, Embeds):
    """A network on clips of `frames` frames of `size` pixels. The pretexts are `speed` (at which of seven speeds is it
    played), `vcop` (in which order are three clips; crops from random places but no scales, flips or jitter) and `ctp`
    (Catch-the-Patch: where do moving patches go; for r3d, whose map it wants twice as fine). The paper setting is 16
    frames of 112 pixels and r3d with bn_eps = 1e-3 (recipe fedvssl-paper)."""

    sends: ClassVar = {"frames": "count"}

    pretext: Literal["speed", "vcop", "ctp"] = "speed"
    backbone: BackboneConfig = field(default_factory=R3DConfig)
    frames: int = 8
    size: int = 32
    stored: int = 0  # side that clips are kept at, to be cropped from; 0: 8/7 of the size, as 128 pixels for 112
    scales: tuple[float, ...] = (1.0, 1.143, 1.286)  # sides before the crop, in multiples of it: 112, 128, 144 for 112
    flip: float = 0.5
    jitter: float = 0.2  # probability of a change of brightness, of contrast, of hue (ctp: half of it)
    gap: int = 4  # vcop: frames between clips
    dropout: float = 0.5
    norm: Norm = "backbone"  # what colours are brought to: see scale_of; Catch-the-Patch's authors have imagenet
    differences: bool = False  # the network sees differences of neighbouring frames, not frames

    def __post_init__(self) -> None:
        self.backbone.check_takes("clips")
        if self.pretext == "ctp" and not isinstance(self.backbone, R3DConfig):
            raise RecipeError(
                "Catch-the-Patch needs a map twice as fine as this backbone's",
                where="[task.backbone] name",
                expected="r3d, or the pretext speed or vcop",
                found=BACKBONES.name_of(type(self.backbone)),
            )
        check_ranges(self, "task", frames=(2, math.inf), size=(1, math.inf), gap=(0, math.inf))
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

    def model(self) -> PretextNetwork:
        backbone = self.backbone.built(Clips(self.frames - self.differences, self.size))
        if self._asks.fine:
            assert isinstance(backbone, R3D)
            backbone.last_stride = 1
        return PretextNetwork(backbone, self._asks.head(backbone.out_channels))

    def population(self, data: DataConfig, seed: int) -> Population:
        return WindowPopulation(open_clips(data, self.side, "task.stored"), data, self._asks, seed)

    def windows(self, source: Shards, rows: Sequence[int]) -> Windows:
        """Clips of shards as examples of this task."""
        return Windows.of(source, rows, self._asks)

    def augment(self, batch: Batch) -> Question:
        return self._asks.draw(*batch)

    def forward(self, model: nn.Module, batch: Batch) -> Outputs:
        inputs, target = self._question(batch)
        maps = model.backbone.features(self._input(inputs.flatten(0, -5)))  # type: ignore[operator, union-attr]
        return Outputs(pooled(maps, "mean"), self._asks.answer(model.head, maps, target))  # type: ignore[arg-type]

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

    def embed(self, model: nn.Module, clips: Tensor, pooling: Literal["mean", "grid"] = "mean") -> Tensor:
        with strided(model.backbone) as backbone:  # type: ignore[arg-type]
            return pooled(backbone.features(self._input(middle(clips, self.size))), pooling)

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
