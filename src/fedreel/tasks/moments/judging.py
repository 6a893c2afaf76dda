"""Answers to test questions against the truth: from what a model says of each window to the measures of a client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedreel.tasks.moments.formats import STRETCH
from fedreel.tasks.moments.metrics import cval_score, highlights, iou, recalls
from fedreel.tasks.moments.windows import joined


@dataclass(frozen=True)
class Said:
    """What a model says of the rows of its examples, in their order; times are those of the row's window."""

    spans: np.ndarray  # (N, 2) the likeliest, in seconds
    scores: np.ndarray  # (N,) of it
    salient: np.ndarray  # (N, T) each position
    truth: np.ndarray  # (N, 2)
    seconds: np.ndarray  # (N,) length of the window


def judged(said: Said, examples: object) -> dict[str, float]:
    """R(1, m) as r3, r5 and r7, the mean IoU and FedVMR's score; where people have rated highlights, also
    `highlight_map` and `highlight_hit`. Of several windows of a video the likeliest answer counts."""
    asked, ratings = (_array(getattr(examples, name, None)) for name in ("asked", "ratings"))
    rows = [np.array([row]) for row in range(len(said.spans))]
    begins, truth = np.zeros(len(said.spans)), said.truth
    if asked is not None:
        _, first, which = np.unique(asked[:, 0], return_index=True, return_inverse=True)
        rows = [np.flatnonzero(which == question) for question in which[np.sort(first)]]
        begins, truth = asked[:, 1], asked[:, 2:]
    best = np.array([mine[said.scores[mine].argmax()] for mine in rows])
    spans = said.spans[best] + begins[best, None]
    found = {**recalls(spans, truth[best]), "score": cval_score(iou(spans, truth[best])), "n": float(len(rows))}
    if ratings is None or not (rated := [mine for mine in rows if ratings[mine[0]].max() >= 0]):
        return found
    return {**found, **_highlights(said, begins, ratings, rated)}


def _highlights(said: Said, begins: np.ndarray, ratings: np.ndarray, rated: list[np.ndarray]) -> dict[str, float]:
    predicted, told = [], []
    for mine in rated:
        windows = [(float(a), float(a + n)) for a, n in zip(begins[mine], said.seconds[mine])]
        salient = joined(said.salient[mine], windows, windows[-1][1])
        mine_told = ratings[mine[0]]
        mine_told = mine_told[:, (mine_told >= 0).any(0)]
        told.append(mine_told[(mine_told >= 0).all(1)])
        middles = (np.arange(len(told[-1])) + 0.5) * STRETCH / windows[-1][1]
        predicted.append(salient[np.minimum((middles * len(salient)).astype(int), len(salient) - 1)])
    return highlights(predicted, told)


def _array(given: Tensor | None) -> np.ndarray | None:
    return None if given is None else given.cpu().numpy()
