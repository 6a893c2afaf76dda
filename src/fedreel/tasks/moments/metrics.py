"""How well moments are found: overlap, recall, the score on a common validation set, what a constant answer gets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedreel.errors import DataError

Array = np.ndarray

THRESHOLDS = (0.3, 0.5, 0.7)
MEASURES = ("r30", "r50", "r70", "miou")  # of these
VERY_GOOD = 4  # of 0 to 4: a highlight
_AT_ONCE = 1 << 18  # overlaps
CVAL_WEIGHTS: Mapping[float, float] = {0.1: 0.1, 0.3: 0.2, 0.5: 0.2, 0.7: 0.4, 0.9: 0.1}  # FedVMR's e_h, by IoU


def iou(a: Array, b: Array) -> Array:
    """Of spans (..., 2), start and end in the same unit. Spans without length overlap nothing."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    common = np.minimum(a[..., 1], b[..., 1]) - np.maximum(a[..., 0], b[..., 0])
    union = np.maximum(a[..., 1], b[..., 1]) - np.minimum(a[..., 0], b[..., 0])
    found: Array = np.maximum(common, 0.0) / np.where(union > 0, union, 1.0)
    return found


def recalls(predicted: Array, truth: Array, thresholds: Sequence[float] = THRESHOLDS) -> dict[str, float]:
    """R(1, m) as shares, named `r30` for m = .3: of questions whose answer overlaps the truth by more than m. And
    `miou`, the mean overlap. Spans (N, 2) in seconds."""
    return {name: float(value) for name, value in _measures(iou(*_pairs(predicted, truth)), thresholds).items()}


def cval_score(ious: Array) -> float:
    """FedVMR's score of a model on the common validation set: sum of e_h times the share of overlaps above h; from 0
    to 1."""
    overlaps = np.asarray(ious, np.float64)
    if not overlaps.size:
        raise DataError("there is nothing to score", expected="the overlap of at least one question", found="none")
    return float(sum(weight * np.mean(overlaps > h) for h, weight in CVAL_WEIGHTS.items()))


def highlights(predicted: Sequence[Array], ratings: Sequence[Array]) -> dict[str, float]:
    """QVHighlights' measures of saliency, as its program for testing has them. For each question `predicted` (C,) says
    how salient the stretches of the video are, `ratings` (C, R) what R people found, from 0 to 4: what is VERY_GOOD is
    a highlight. `highlight_hit` (HIT@1): of questions whose most salient stretch is one for anybody. `highlight_map`:
    the mean, over questions and people, of the average precision by which their highlights come first."""
    hits, precisions = [], []
    for salient, told in zip(predicted, ratings, strict=True):
        good = np.asarray(told) >= VERY_GOOD
        hits.append(float(good[int(np.argmax(salient))].any()))
        precisions += [average_precision(salient, column) for column in good.T]
    return {"highlight_map": float(np.mean(precisions)), "highlight_hit": float(np.mean(hits))}


def average_precision(scores: Array, right: Array) -> float:
    """The mean, over the scores at which something more of what is right is found, of the highest precision at that
    score or any lower one; of nothing right 0."""
    scores, right = np.asarray(scores, np.float64), np.asarray(right, bool)
    if not right.any():
        return 0.0
    levels = np.unique(scores)[::-1]  # what has at least this score is taken
    taken = scores[None, :] >= levels[:, None]
    found = (taken & right).sum(1)
    precision = np.maximum.accumulate((found / taken.sum(1))[::-1])[::-1]
    return float(np.mean(precision[np.diff(found, prepend=0) > 0]))


def prior_only(
    train: Array, grid: int = 40, thresholds: Sequence[float] = THRESHOLDS, max_share: float = 1.0
) -> dict[str, tuple[float, float]]:
    """For each measure of `recalls`, the one span that is best as the answer to every training question: what a model
    must beat to have learned anything. Spans (N, 2) and the answers are in shares of the duration; answers begin and
    end on a grid of so many steps and are no longer than `max_share`. Of equally good ones, the first and shortest."""
    moments, _ = _pairs(train, train)
    first, last = np.triu_indices(grid)
    short = last - first < max(1, math.floor(max_share * grid + 1e-9))
    spans = np.stack([first, last + 1], axis=1)[short] / grid
    some = max(1, _AT_ONCE // len(moments))
    parts = [_measures(iou(spans[i : i + some, None], moments), thresholds) for i in range(0, len(spans), some)]
    best = {name: int(np.argmax(np.concatenate([part[name] for part in parts]))) for name in parts[0]}
    return {name: (float(spans[place, 0]), float(spans[place, 1])) for name, place in best.items()}


def clock(rounds: float, clients: int, groups: int) -> float:
    """How many clients train one after another in so many rounds: groups work at the same time, their members in turn.
    FedVMR's Table 2 divides it by that of all clients in parallel."""
    return rounds * clients / groups


def best_mean(curve: Sequence[float], window: int = 3) -> float:
    """The highest mean of `window` values in a row; of all values, if there are fewer."""
    n = min(window, len(curve))
    return max(math.fsum(curve[i : i + n]) / n for i in range(len(curve) - n + 1))


def rounds_to_target(curve: Sequence[float], target: float, window: int = 3) -> int | None:
    """How many rounds were done when the mean of the last `window` values reached the target; none if it never did.
    The curve has a value for every round. No mean is taken of fewer values."""
    for done in range(window, len(curve) + 1):
        if math.fsum(curve[done - window : done]) / window >= target:
            return done
    return None


def _measures(overlaps: Array, thresholds: Sequence[float]) -> dict[str, Array]:
    """Of overlaps (..., N), over the last dimension."""
    shares = {f"r{100 * m:.0f}": np.mean(overlaps > m, axis=-1) for m in thresholds}
    return {**shares, "miou": np.mean(overlaps, axis=-1)}


def _pairs(predicted: Array, truth: Array) -> tuple[Array, Array]:
    a, b = np.asarray(predicted, np.float64), np.asarray(truth, np.float64)
    if a.shape != b.shape or a.ndim != 2 or a.shape[1:] != (2,) or not len(a):
        raise DataError(
            "these spans cannot be compared",
            expected="start and end for each of the same questions, (N, 2)",
            found=f"{a.shape} and {b.shape}",
        )
    return a, b
