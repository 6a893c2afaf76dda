"""What a frozen backbone's vectors are worth where there are labels: a linear classifier that is trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.config import TrainConfig
from fedreel.core.capture import Recorder
from fedreel.core.fused import Fuser
from fedreel.core.optim import make_optimizer
from fedreel.core.task import Examples, Objective, Outputs
from fedreel.core.training import check_finite, fit, learning_rate
from fedreel.machine.device import seeded
from fedreel.tasks.vision.frozen import AnyView

PROBE = TrainConfig(
    epochs=100,
    batch_size=32,
    lr=0.01,
    momentum=0.9,
    weight_decay=5e-4,
    clip_norm=40.0,
    schedule="step",
    milestones=(60, 80),
)
DROPOUT = 0.5


def probe(clips: Tensor, labels: Tensor, classes: int, config: TrainConfig = PROBE, seed: int = 0) -> nn.Module:
    """A linear classifier, with dropout before it, of vectors (videos, clips, D); in eval mode."""
    with seeded(seed, clips.device):
        fc = nn.Linear(clips.shape[2], classes)
        nn.init.normal_(fc.weight, std=0.01)
        nn.init.zeros_(fc.bias)
        classifier = nn.Sequential(nn.Dropout(DROPOUT), fc).to(clips.device)
        train_epochs(classifier, _Probed(), AnyView(clips, (labels,)), config, seed)
    return classifier.eval()


def train_epochs(
    model: nn.Module,
    task: Objective,
    examples: Examples,
    config: TrainConfig,
    seed: int,
    rates: Sequence[float] | None = None,
) -> None:
    """All epochs, those with the same rate in one go; the optimizer's state goes on from one rate to the next. The
    rates are those of the config, or one for every epoch."""
    rates = rates or [learning_rate(config, epoch, config.epochs) for epoch in range(1, config.epochs + 1)]
    optimizer = make_optimizer(model.parameters(), config)
    generator = torch.Generator().manual_seed(seed)
    recorder = Recorder() if config.cuda_graph and next(model.parameters()).device.type == "cuda" else None
    fuser = Fuser() if config.fuse else None
    for rate, some in groupby(rates):
        kept = optimizer.state()
        optimizer.reset(rate)
        optimizer.restore(kept)
        fitted = fit(
            model,
            task,
            examples,
            optimizer,
            config,
            epochs=len([*some]),
            generator=generator,
            recorder=recorder,
            fuser=fuser,
        )
        check_finite(fitted.loss, "downstream")


class Labelled:
    """Batches whose second part is the labels."""

    smoothing: float = 0.0

    def augment(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return batch

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(outputs.logits, batch[1], label_smoothing=self.smoothing)


class _Probed(Labelled):
    """The first part is vectors."""

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        return Outputs(batch[0], model(batch[0]))
