"""How much noise on its weights a backbone's features stand: retrieval by a changed model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fedreel.core.abilities import Embeds, Pooling
from fedreel.metrics.landscape import mean_perturbed_loss
from fedreel.metrics.neighbours import recall_at
from fedreel.tasks.vision.evaluate.retrieval import LabelledSet, video_features

SIZES = (0.1, 0.2, 0.3, 0.4, 0.5)
SEEDS = (0, 1, 2)


def perturbed_retrieval(
    model: nn.Module,
    task: Embeds,
    among: LabelledSet,
    sizes: Sequence[float] = SIZES,
    seeds: Sequence[int] = SEEDS,
    norms: bool = True,
    pooling: Pooling = "grid",
) -> list[tuple[float, float, float]]:
    """(k, mean, standard deviation over seeds) of R@1 when every weight of the backbone gets k times a number from
    N(0, 1) added, those of batch norm only with `norms`. Running statistics stay. This is noise of an absolute size, as
    in the paper: most weights are smaller than 0.1, so that all models fall quickly."""
    parts = (among.train, among.test)
    labels = [among.labels[rows].tolist() for rows in parts]

    def first_hits(_: nn.Module) -> float:  # the backbone is the model's own, changed in place
        found = [video_features(model, task, among, rows, (pooling,))[0] for rows in parts]
        gallery, queries = map(torch.nan_to_num, found)  # much noise on many layers can be too much for a float
        return recall_at(gallery, labels[0], queries, labels[1], 1)[1]

    backbone: nn.Module = model.backbone  # type: ignore[assignment]
    return mean_perturbed_loss(backbone, first_hits, sizes, seeds, "standard", norms)
