"""Image classification at clients; for a server with images of its own, telling views apart or learning labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel import playground
from fedreel.config import DataConfig, check_ranges
from fedreel.core.task import Examples, Outputs, Population, Tensors
from fedreel.machine.device import channels_together
from fedreel.models.backbone import Backbone, BackboneConfig, Images
from fedreel.models.classifier import Classifier
from fedreel.models.resnet import ResNet18Config
from fedreel.tasks.image.pictures import open_pictures
from fedreel.tasks.image.population import PicturePopulation, TestPictures, open_public
from fedreel.tasks.vision.appearance import appearance
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.tasks.vision.contrast_views import SimCLR, crop_and_flip, scaled
from fedreel.tasks.vision.frozen import Look, frozen_views, state_of


@dataclass(frozen=True)
class Image(Contrasting):
    """A network on images of `size` pixels. The paper setting is resnet18 on 224 pixels with ImageNet weights (recipe
    fedlid-paper); for 32 pixels its stem should be small."""

    metrics: ClassVar = ("loss", "top1", "top1_own")
    ranges: ClassVar = {"top1": (0.0, 1.0), "top1_own": (0.0, 1.0)}

    backbone: BackboneConfig = field(default_factory=ResNet18Config)
    size: int = 32
    server_size: int = 0  # pixels of the sides that the server's images are kept with, so that views are cut from more
    # than they show; 0: as `size`
    most_per_class: int = 0  # images of a class that are used of each part (train, val, test), of the server's too; 0:
    # all of them
    label_share: float = 1.0  # of each client's training images; others serve where views are the objective
    padding: float = 0.125  # training images are cropped out of a border, on each side such a share of theirs
    flip: float = 0.5
    dropout: float = 0.0

    def __post_init__(self) -> None:
        self.backbone.check_takes("images")
        self.check_contrast()
        check_ranges(self, "task", size=(8, math.inf), server_size=(0, math.inf), most_per_class=(0, math.inf))
        check_ranges(self, "task", padding=(0, 1), flip=(0, 1), dropout=(0, 1), label_share=(1e-9, 1))

    def network(self) -> Backbone:
        return self.backbone.built(Images(self.size))

    def classifier(self) -> nn.Module:
        return Classifier(self.network(), self.classes, dropout=self.dropout)

    def population(self, data: DataConfig, seed: int) -> Population:
        source = data.source
        if source == "playground":
            source = str(playground.cached(data.seed, data.size, ("images",)) / "images" / "clients")
        pictures = open_pictures(source, self.size).first(self.most_per_class)
        population = PicturePopulation(pictures, data, self.label_share, seed, all_images=self.objective == "views")
        self.check_classes(population.classes, data.source)
        return population

    def public(self, data: DataConfig, seed: int) -> Tensors:
        found = open_public(data, self.server_size or self.size).first(self.most_per_class)
        return Tensors((torch.from_numpy(found.images), torch.from_numpy(found.labels)))

    def prepared(self, model: nn.Module, examples: Examples, training: bool) -> Examples:
        """Pictures of a frozen backbone, where each has one view, as what it makes of them: (N, C, 1, 1) in place of
        (N, H, W, 3), and behind the labels what the pictures look like."""
        frozen = isinstance(model, Classifier) and model.backbone.frozen_encoder
        if not frozen or (training and (self.padding or self.flip)):
            return examples
        assert isinstance(model, Classifier)
        look = Look(self.labelled_view, self.network_input, f"{self.backbone.input_scale} {self.size}", "")

        def seen(pictures: Tensor) -> tuple[Tensor, Tensor]:
            return frozen_views(model, pictures, look, 1)[:, 0], appearance(pictures)

        if isinstance(examples, TestPictures):
            return examples.seen(state_of(model, look.words), seen)
        if not isinstance(examples, Tensors):
            return examples
        made, looks = seen(examples.tensors[0])
        return Tensors((made, examples.tensors[1], looks))

    def augment(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return batch if _is_prepared(batch) else super().augment(batch)

    def forward(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Outputs:
        if _is_prepared(batch):
            return Outputs(*model.answered(batch[0]))  # type: ignore[operator]
        return super().forward(model, batch)

    def look_of(self, batch: tuple[Tensor, ...]) -> Tensor:
        return batch[2] if _is_prepared(batch) else super().look_of(batch)

    def labelled_view(self, samples: Tensor) -> Tensor:
        return crop_and_flip(scaled(samples, self.size), self.size, round(self.padding * self.size), self.flip)

    @cached_property
    def views(self) -> SimCLR:
        return SimCLR(self.size, self.strength, self.flip, (self.crop_scale, 1.0))

    def network_input(self, samples: Tensor) -> Tensor:
        """(N, H, W, 3) to (N, 3, H, W) of the task's size on the backbone's scale, on a GPU with channels together in
        memory: its convolutions want that."""
        scale = self.backbone.input_scale
        mean, std = (_constants(values, samples.device) for values in (scale.mean, scale.std))
        x = ((scaled(samples, self.size).float() / 255 - mean) / std).permute(0, 3, 1, 2)
        return channels_together(x) if x.is_cuda else x.contiguous()

    def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
        """`top1_own` is the accuracy if classes were as common as among the client's training images."""
        if self.objective == "views" or not isinstance(examples, TestPictures) or not len(examples):
            return super().evaluate(model, examples, batch_size)

        def answer() -> tuple[Tensor, Tensor]:
            right, losses = [], []
            for batch in examples.batches(batch_size):
                logits = self.forward(model, batch).logits
                right.append(logits.argmax(1) == batch[1])
                losses.append(F.cross_entropy(logits, batch[1], reduction="none"))
            return torch.cat(right).float(), torch.cat(losses)

        said = examples.answered(model, self, batch_size, answer)
        hits = said.right
        found = {"top1": hits.mean(), "top1_own": (hits * examples.weights).mean(), "loss": said.losses.mean()}
        return {name: float(value) for name, value in found.items()} | {"n": float(len(hits))}

    def judged(self, examples: Examples) -> Examples:
        return examples.own if isinstance(examples, TestPictures) else examples

    def card(self) -> dict[str, Any]:
        scale = self.backbone.input_scale
        return {"input": {"size": self.size, "mean": scale.mean, "std": scale.std, "channels": "RGB"}}


def _is_prepared(batch: tuple[Tensor, ...]) -> bool:
    """Whether it holds what a frozen backbone made of pictures; these themselves have their three colours last."""
    return batch[0].shape[-1] == 1


def _constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """On the device without a copy from the host: that would wait for the device."""
    return torch.stack([torch.full((), value, device=device) for value in values])
