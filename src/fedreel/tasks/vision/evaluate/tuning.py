"""How a backbone is fine-tuned: a convolutional one as Catch-the-Patch's authors do it, a transformer as VideoMAE's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from torch import nn

from fedreel.config import TrainConfig
from fedreel.core.abilities import Embeds
from fedreel.core.training import learning_rate
from fedreel.models.classifier import Classifier
from fedreel.models.transformer import TransformerConfig
from fedreel.models.videomae import VideoMAE
from fedreel.tasks.vision.probe import DROPOUT, PROBE

LAYER = re.compile(r"(?:^|\.)(?:layer|layers)\.(\d+)\.")


@dataclass(frozen=True)
class Tuning:
    """`train` says the optimizer and the rate; `rates` are those among which one may be chosen instead. The rate of a
    layer is `layer_decay` times that of the next; biases and norms have no weight decay where it is not 1."""

    train: TrainConfig
    rates: tuple[float, ...] = ()
    warm_up: float = 0.0  # share of the epochs in which the rate rises
    layer_decay: float = 1.0
    smoothing: float = 0.0  # of labels
    drop_path: float = 0.0  # share of the clips for which the last layer adds nothing; evenly less of earlier layers'
    norm: bool = False  # whether vectors are normed, by a new layer, before they are classified

    def shortened(self, epochs: int) -> Tuning:
        """The same in so many epochs."""
        return replace(self, train=shortened(self.train, epochs))

    def by_epoch(self) -> list[float]:
        """The rate of every epoch."""
        config, rising = self.train, round(self.warm_up * self.train.epochs)
        rise = [config.lr * epoch / rising for epoch in range(1, rising + 1)]
        left = config.epochs - rising
        return rise + [learning_rate(config, epoch, left) for epoch in range(1, left + 1)]

    def prepare(self, classifier: Classifier) -> None:
        """Give a new classifier what it is trained with."""
        backbone, width = classifier.backbone, classifier.backbone.out_channels
        if self.norm:
            dropout = classifier.head["dropout"]
            classifier.head["dropout"] = nn.Sequential(nn.LayerNorm(width), dropout)
        if self.drop_path and isinstance(backbone, VideoMAE):
            backbone.drop_paths(self.drop_path)
        if self.layer_decay != 1:
            for name, scale in rate_scales(classifier, self.layer_decay).items():
                parameter = classifier.get_parameter(name)
                parameter.rate_scale = scale  # type: ignore[attr-defined]
                parameter.no_decay = parameter.dim() <= 1  # type: ignore[attr-defined]


def shortened(config: TrainConfig, epochs: int) -> TrainConfig:
    """The same training in so many epochs, with the rate falling at the same shares of it."""
    return replace(
        config, epochs=epochs, milestones=tuple(round(m * epochs / config.epochs) for m in config.milestones)
    )


TUNE = replace(PROBE, epochs=150, milestones=(60, 120))
CONVOLUTIONAL = Tuning(TUNE, rates=(0.003, 0.01, 0.03))
TRANSFORMER = Tuning(
    TrainConfig(epochs=150, batch_size=32, optimizer="adamw", lr=1e-3, weight_decay=0.05, schedule="cosine"),
    rates=(3e-4, 1e-3, 3e-3),
    warm_up=0.05,
    layer_decay=0.75,
    smoothing=0.1,
    drop_path=0.1,
    norm=True,
)


def tuning_of(task: Embeds) -> Tuning:
    """What fits the task's backbone."""
    return TRANSFORMER if is_transformer(task) else CONVOLUTIONAL


def is_transformer(task: Embeds) -> bool:
    return isinstance(getattr(task, "backbone", None), TransformerConfig)


def rate_scales(classifier: Classifier, decay: float) -> dict[str, float]:
    """By parameter: 1 for the classifier and for what comes after the last layer, `decay` for that, `decay` squared for
    the one before, and so on; what comes before the first layer is below it."""
    found = {name: LAYER.search(name) for name, _ in classifier.named_parameters()}
    depth = 1 + max((int(match[1]) for match in found.values() if match), default=-1)

    def above(name: str, match: re.Match[str] | None) -> int:
        """How many layers are above a parameter, itself among them."""
        if match:
            return depth - int(match[1])
        return depth + 1 if ".embeddings." in f".{name}" else 0

    return {name: math.pow(decay, above(name, match)) for name, match in found.items()}


def new_classifier(backbone: nn.Module, classes: int, std: float, tuning: Tuning) -> Classifier:
    """A backbone that is to be tuned, with a new head."""
    classifier = Classifier(backbone, classes, DROPOUT, std=std)  # type: ignore[arg-type]
    tuning.prepare(classifier)
    return classifier
