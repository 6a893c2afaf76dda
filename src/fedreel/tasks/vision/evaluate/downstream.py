"""What a pretrained backbone is worth where there are labels: a linear probe on it, and fine-tuning it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from fedreel.config import TrainConfig
from fedreel.core.abilities import Embeds
from fedreel.core.task import Outputs, Tensors
from fedreel.machine.device import seeded, sent
from fedreel.models.backbone import Backbone
from fedreel.models.classifier import Classifier
from fedreel.models.tune import tune_all
from fedreel.tasks.vision.clip_views import Views
from fedreel.tasks.vision.evaluate.retrieval import LabelledSet, Places, clip_features, in_ten_parts, ten_clips
from fedreel.tasks.vision.evaluate.tuning import CONVOLUTIONAL, Tuning, new_classifier
from fedreel.tasks.vision.footage import Cut, Held, Stored, bytes_of
from fedreel.tasks.vision.probe import PROBE, Labelled, probe, train_epochs

STRIDE = 2  # clips are of every second frame
FIRST_STD = 0.001  # of a classifier's first weights


def linear_probe(
    model: nn.Module,
    task: Embeds,
    labelled: LabelledSet,
    config: TrainConfig = PROBE,
    seed: int = 0,
    places: Places = in_ten_parts,
    standardise: bool = False,
) -> float:
    """Top-1 of a linear classifier on the frozen backbone, its batch norms by their statistics; a test video's logits
    are means over ten clips. Training videos are looked at once: a frozen backbone gives a clip the same vector in
    every epoch, so the classifier learns from the vectors of ten clips, one of each video in an epoch. What is left out
    of the paper's protocol is the augmentation of these clips. To `standardise` vectors is one more linear map, with
    which the rate fits networks whose vectors are small, too."""
    rows = (labelled.train, labelled.test)
    seen = (clip_features(model, task, labelled, which, places=places) for which in rows)
    train, test = (torch.cat([vectors for (vectors,) in clips]) for clips in seen)
    if standardise:
        mean, spread = train.mean(dim=(0, 1)), train.std(dim=(0, 1)) + 1e-6
        train, test = (train - mean) / spread, (test - mean) / spread
    truth = [torch.from_numpy(labelled.labels[which]).to(train.device) for which in rows]
    classifier = probe(train, truth[0], len(labelled.classes), config, seed)
    with torch.no_grad():
        logits = classifier(test).mean(dim=1)
    return _share_right(logits, truth[1])


def fine_tune(
    model: nn.Module,
    task: Embeds,
    labelled: LabelledSet,
    views: Views,
    tuning: Tuning = CONVOLUTIONAL,
    seed: int = 0,
    stride: int = STRIDE,
) -> Classifier:
    """A classifier that begins with a copy of the model's backbone, all of it trained: clips from random places of the
    training videos, random views of them. In eval mode."""
    device = next(model.parameters()).device
    with seeded(seed, device):
        backbone = cast(Backbone, copy.deepcopy(model.backbone))
        tune_all(backbone)
        classifier = new_classifier(backbone, len(labelled.classes), FIRST_STD, tuning).to(device)
        examples = RandomClips(labelled.footage(device), labelled.train, labelled.labels, task.frames, stride)
        tuned = _Tuned(task, views, tuning.smoothing)
        train_epochs(classifier, tuned, examples, tuning.train, seed, tuning.by_epoch())
    return classifier.eval()


def top1(classifier: Classifier, task: Embeds, labelled: LabelledSet, places: Places = in_ten_parts) -> float:
    """Share of test videos that are right; a video's logits are means over ten clips, seen in the middle."""
    classifier.eval()
    device = next(classifier.parameters()).device
    found = []
    with torch.no_grad():
        for clips in ten_clips(labelled.footage(device), labelled.test, task.frames, places):
            features = task.embed(classifier, clips.flatten(0, 1))
            found.append(classifier.classify(features)[1].unflatten(0, clips.shape[:2]).mean(dim=1))
    return _share_right(torch.cat(found), torch.from_numpy(labelled.labels[labelled.test]).to(device))


@dataclass(frozen=True)
class _Tuned(Labelled):
    """The first part is clips as they are stored."""

    base: Embeds
    views: Views
    smoothing: float = 0.0

    def augment(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.views.random(batch[0]), batch[1]

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        return Outputs(*cast(Classifier, model).classify(self.base.embed(model, batch[0])))


@dataclass(frozen=True)
class RandomClips:
    """Of each video `frames` frames, `stride` apart, from a random place and in a random square. Batches are the same
    wherever the videos lie."""

    footage: Held | Stored
    rows: np.ndarray
    labels: np.ndarray  # of the whole footage
    frames: int
    stride: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return bytes_of(self.footage)

    @property
    def resident(self) -> bool:
        return isinstance(self.footage, Held)

    def to(self, device: torch.device) -> RandomClips:
        assert device == self.footage.device
        return self

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        shapes = self._shapes
        lengths = torch.tensor([shapes[i][0] for i in self.rows])
        spare = (lengths - (self.frames - 1) * self.stride - 1).clamp(min=0)
        starts = torch.minimum((torch.rand(len(spare), generator=generator) * (spare + 1)).long(), spare)
        place = torch.rand(len(spare), generator=generator)  # of the square, along the longer side
        times = torch.minimum(starts[:, None] + self.stride * torch.arange(self.frames), lengths[:, None] - 1)
        groups = [*Tensors((torch.from_numpy(self.rows), times, place)).batches(size, generator)]
        cuts = ([self._cut(*one) for one in zip(rows.tolist(), seen, at.tolist())] for rows, seen, at in groups)
        for (rows, _, _), clips in zip(groups, self.footage.read(cuts)):
            yield clips, sent(torch.from_numpy(self.labels[rows.numpy()]), self.footage.device)

    def _cut(self, row: int, times: Tensor, share: float) -> Cut:
        side, (_, *sides) = self.footage.side, self._shapes[row]
        return row, times, [min(int(share * (length - side + 1)), length - side) for length in sides]

    @cached_property
    def _shapes(self) -> list[tuple[int, int, int]]:
        return self.footage.shapes


def _share_right(logits: Tensor, truth: Tensor) -> float:
    return int((logits.argmax(dim=1) == truth).sum()) / len(truth)
