"""The measures of a backbone, as FedVSSL's tables have them: each says of one labelled set what the model is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from fedreel.core.abilities import Embeds, Pooling
from fedreel.errors import Diverged
from fedreel.metrics.calibration import binned, expected_calibration_error
from fedreel.metrics.neighbours import knn_accuracy, recall_at
from fedreel.models.r3d import R3DConfig
from fedreel.models.transformer import TransformerConfig
from fedreel.tasks.vision.clip_views import Views
from fedreel.tasks.vision.contrast import Contrasting
from fedreel.tasks.vision.evaluate.downstream import fine_tune, linear_probe, top1
from fedreel.tasks.vision.evaluate.retrieval import KS, Compared, LabelledSet, compared
from fedreel.tasks.vision.evaluate.tuning import Tuning, is_transformer, tuning_of

Metrics = dict[str, float]

AT_ONCE = 8  # videos that are answered together
NEIGHBOURS = (1, 5, 20)
FLIP, JITTER = 0.35, 0.2  # when fine-tuning
PAPER_WIDTH, PAPER_BLOCKS = 64, 8  # of R3D-18
PLAYGROUND_SHARE, SMALL_SHARE = 0.2, 0.4  # of the paper's epochs of fine-tuning: on the playground, of small networks
CHOOSING_SHARE = 1 / 3  # of the epochs, where a rate is chosen


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
    def compared(self) -> Mapping[Pooling, Compared]:
        """Features of all videos: those that keep places, and means over them; looked at once."""
        return compared(self.model, self.task, self.labelled, ("grid", "mean"))


def recalls(trial: Trial) -> Metrics:
    """`r1` .. `r50`: R@k; `r1 pooled` likewise by features that are means over all places."""
    grid, mean = (recall_at(*trial.compared[pooling], KS) for pooling in ("grid", "mean"))
    return {f"r{k}": v for k, v in grid.items()} | {f"r{k} pooled": v for k, v in mean.items()}


def neighbours(trial: Trial) -> Metrics:
    """`knn1` .. `knn20`: top-1 by a vote of the nearest training videos, by features that are means over all places."""
    return {f"knn{k}": share for k, share in knn_accuracy(*trial.compared["mean"], NEIGHBOURS).items()}


def probes(trial: Trial) -> Metrics:
    """`probe`: top-1 of a linear classifier on the frozen backbone; of transformers, as MAE's authors do it, and of
    smaller networks than the paper's, vectors are standardised."""
    standardise = is_transformer(trial.task) or _smaller(trial.task)
    return {"probe": linear_probe(trial.model, trial.task, trial.labelled, seed=trial.seed, standardise=standardise)}


def tunings(trial: Trial) -> Metrics:
    """`tune`: top-1 after fine-tuning as it fits the backbone, in the run's precision."""
    return {"tune": _tuned(trial, _tuning(trial))}


def longer_tunings(trial: Trial) -> Metrics:
    """`tune longer`: likewise for all of the paper's epochs, whatever the network and the videos."""
    epochs = trial.epochs or tuning_of(trial.task).train.epochs
    return {"tune longer": tunings(replace(trial, epochs=epochs))["tune"]}


def chosen_tunings(trials: Sequence[Trial]) -> tuple[float, list[Metrics]]:
    """A rate of fine-tuning, and `tune` of each set with it: the best of those that there are for the backbone, by the
    mean over the sets of top-1 on a part of the training videos that is not learned from meanwhile, in a third of the
    epochs."""
    apart = [replace(trial, labelled=trial.labelled.held_out()) for trial in trials]
    rates = tuning_of(trials[0].task).rates
    scores = [fmean(_score(trial, rate) for trial in apart) for rate in rates]
    best = rates[scores.index(max(scores))]
    return best, [{"tune": _tuned(trial, _at(_tuning(trial), best))} for trial in trials]


def _score(trial: Trial, rate: float) -> float:
    tuning = _at(_tuning(trial), rate)
    try:
        return _tuned(trial, tuning.shortened(max(1, round(CHOOSING_SHARE * tuning.train.epochs))))
    except Diverged:
        return 0.0


def _tuned(trial: Trial, tuning: Tuning) -> float:
    """Clips are not mirrored on the playground: that changes what they show."""
    size, scales = trial.task.crops
    views = Views(size, scales, 0.0 if trial.playground else FLIP, JITTER)
    classifier = fine_tune(trial.model, trial.task, trial.labelled, views, tuning, trial.seed)
    return top1(classifier, trial.task, trial.labelled)


def _tuning(trial: Trial) -> Tuning:
    """On the playground, and of smaller networks than the published ones, for a part of the paper's epochs."""
    share = PLAYGROUND_SHARE if trial.playground else SMALL_SHARE if _smaller(trial.task) else 1.0
    tuning = tuning_of(trial.task)
    tuning = tuning.shortened(trial.epochs or round(share * tuning.train.epochs))
    return replace(tuning, train=replace(tuning.train, precision=trial.precision))


def _at(tuning: Tuning, rate: float) -> Tuning:
    return replace(tuning, train=replace(tuning.train, lr=rate))


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
    """Whether the network is an R3D smaller than the paper's, or a transformer narrower than the smallest published."""
    backbone = getattr(task, "backbone", None)
    if isinstance(backbone, TransformerConfig):
        return backbone.width < backbone.usual["width"]
    return isinstance(backbone, R3DConfig) and (backbone.width < PAPER_WIDTH or sum(backbone.blocks) < PAPER_BLOCKS)
