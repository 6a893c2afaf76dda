"""The measures of a backbone, as FedVSSL's tables have them: each says of one labelled set what the model is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from fedreel.core.abilities import Embeds
from fedreel.metrics.calibration import binned, expected_calibration_error
from fedreel.metrics.neighbours import knn_accuracy, recall_at
from fedreel.models.r3d import R3DConfig
from fedreel.tasks.vision.clip_views import Views
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.tasks.vision.evaluate.downstream import TUNE, fine_tune, linear_probe, shortened, top1
from fedreel.tasks.vision.evaluate.retrieval import KS, Compared, LabelledSet, compared, retrieval

Metrics = dict[str, float]

AT_ONCE = 8  # videos that are answered together
NEIGHBOURS = (1, 5, 20)
FLIP, JITTER = 0.35, 0.2  # when fine-tuning
PAPER_WIDTH, PAPER_BLOCKS = 64, 8  # of R3D-18
PLAYGROUND_SHARE, SMALL_SHARE = 0.2, 0.4  # of the paper's epochs of fine-tuning: on the playground, of small networks


@dataclass(frozen=True)
class Trial:
    """A model, and the set that it is put to use on."""

    model: nn.Module
    task: Embeds
    labelled: LabelledSet
    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"  # of fine-tuning
    playground: bool = False  # whether the videos are the generated ones
    epochs: int = 0  # of fine-tuning; 0: the paper's or, on the playground and of smaller networks, a part of them
    classes: tuple[str, ...] = ()  # that the model itself names
    temperature: float = 1.0  # at which it names them

    @property
    def answers(self) -> bool:
        """Whether the model names the classes of this set."""
        return sorted(self.classes) == sorted(self.labelled.classes)

    @cached_property
    def pooled(self) -> Compared:
        """Features that are means over all places, of all videos; looked at once."""
        return compared(self.model, self.task, self.labelled, "mean")


def recalls(trial: Trial) -> Metrics:
    """`r1` .. `r50`: R@k; `r1 pooled` likewise by features that are means over all places."""
    grid, mean = retrieval(trial.model, trial.task, trial.labelled), recall_at(*trial.pooled, KS)
    return {f"r{k}": v for k, v in grid.items()} | {f"r{k} pooled": v for k, v in mean.items()}


def neighbours(trial: Trial) -> Metrics:
    """`knn1` .. `knn20`: top-1 by a vote of the nearest training videos, by features that are means over all places."""
    return {f"knn{k}": share for k, share in knn_accuracy(*trial.pooled, NEIGHBOURS).items()}


def probes(trial: Trial) -> Metrics:
    """`probe`: top-1 of a linear classifier on the frozen backbone; of smaller networks than the paper's, vectors are
    standardised."""
    standardise = _smaller(trial.task)
    return {"probe": linear_probe(trial.model, trial.task, trial.labelled, seed=trial.seed, standardise=standardise)}


def tunings(trial: Trial) -> Metrics:
    """`tune`: top-1 after fine-tuning, in the run's precision. On the playground, and of smaller networks than the
    paper's, for a part of its epochs; clips are not mirrored on the playground: that changes what they show."""
    share = PLAYGROUND_SHARE if trial.playground else SMALL_SHARE if _smaller(trial.task) else 1.0
    config = replace(shortened(TUNE, trial.epochs or round(share * TUNE.epochs)), precision=trial.precision)
    size, scales = trial.task.crops
    views = Views(size, scales, 0.0 if trial.playground else FLIP, JITTER)
    classifier = fine_tune(trial.model, trial.task, trial.labelled, views, config, trial.seed)
    return {"tune": top1(classifier, trial.task, trial.labelled)}


def answers(trial: Trial) -> Metrics:
    """`top1`: right answers of the model's own classifier; `ece`, the expected calibration error of its confidence as
    `fedreel recognize` gives it, and `ece uncalibrated`."""
    task, labelled = trial.task, trial.labelled
    assert isinstance(task, Contrasting)
    rows, logits = [int(i) for i in labelled.test], []
    device = next(trial.model.parameters()).device
    trial.model.eval()
    with torch.no_grad():
        for start in range(0, len(rows), AT_ONCE):
            clips = torch.from_numpy(labelled.source.stack(rows[start : start + AT_ONCE], task.frames)).to(device)
            logits.append(task.forward(trial.model, (clips,)).logits.cpu())
    places = torch.tensor([trial.classes.index(labelled.classes[i]) for i in labelled.labels[rows]])
    before, after = (binned(torch.cat(logits), places, t) for t in (1.0, trial.temperature))
    errors = {"ece": expected_calibration_error(after), "ece uncalibrated": expected_calibration_error(before)}
    return {"top1": float(before[:, 2].sum() / before[:, 0].sum()), **errors}


MEASURES: Mapping[str, Callable[[Trial], Metrics]] = MappingProxyType(  # the quick ones first
    {"answers": answers, "retrieval": recalls, "knn": neighbours, "probe": probes, "tune": tunings}
)


def _smaller(task: Embeds) -> bool:
    """Whether the network is an R3D smaller than the paper's."""
    backbone = getattr(task, "backbone", None)
    return isinstance(backbone, R3DConfig) and (backbone.width < PAPER_WIDTH or sum(backbone.blocks) < PAPER_BLOCKS)
