"""How good a video summary is: key-shot F1, rank correlations, and what chance and people reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from fedreel.errors import DataError

Array = np.ndarray
Knapsack = Callable[[Array, Array, int], Iterable[int]]  # values, weights, capacity -> indices of the chosen

RATIO = 0.15  # of a video's frames that a summary may keep


@dataclass(frozen=True)
class Truth:
    """What people said of one video, and how its steps and shots lie on its frames."""

    n_frames: int
    picks: Array  # (steps,) the frame of each step
    change_points: Array  # (shots, 2) first and last frame of each shot
    user_summary: Array  # (users, frames) 1 for a frame in the user's summary
    user_scores: Array | None = None  # (users, steps)
    how: Literal["mean", "max"] = "mean"  # over users: mean for TVSum, max for SumMe
    spread: Literal["hold", "nearest"] = "hold"  # a step's score lasts until the next pick, or is the nearest pick's

    def __post_init__(self) -> None:
        picks, shots, users = self.picks, self.change_points, len(self.user_summary)
        ordered = len(picks) and picks[0] >= 0 and picks[-1] < self.n_frames and bool(np.all(picks[1:] > picks[:-1]))
        self._check(ordered, "picks", "ascending frames of the video")
        bounds = shots.reshape(-1)
        apart = shots.ndim == 2 and shots.shape[1] == 2 and len(shots) and bool(np.all(shots[:, 0] <= shots[:, 1]))
        apart = apart and bounds[0] >= 0 and bounds[-1] < self.n_frames and bool(np.all(shots[1:, 0] > shots[:-1, 1]))
        self._check(apart, "change_points", "first and last frames of shots in order, without overlap")
        self._check(self.user_summary.shape == (users, self.n_frames), "user_summary", "(users, n_frames)")
        scored = self.user_scores is None or self.user_scores.shape == (users, len(picks))
        self._check(scored, "user_scores", "(users, steps), or none")
        self._check(self.how in ("mean", "max"), "how", "'mean' or 'max'")
        self._check(self.spread in ("hold", "nearest"), "spread", "'hold' or 'nearest'")

    def _check(self, good: object, name: str, expected: str) -> None:
        if not good:
            value = getattr(self, name)
            found = f"shape {value.shape}: {value.reshape(-1)[:8]}..." if isinstance(value, np.ndarray) else repr(value)
            raise DataError(f"a video's ground truth is not usable: {name}", expected=expected, found=found)


@dataclass(frozen=True)
class SummaryScores:
    """F1, precision and recall are shares. nan: not defined, as correlations with constant scores are not."""

    f1: float
    precision: float
    recall: float
    tau: float
    rho: float


def score(scores: Array, truth: Truth, ratio: float = RATIO, knapsack: Knapsack | None = None) -> SummaryScores:
    """All measures of one video's step scores."""
    kept = summarize(scores, truth, ratio, knapsack)
    return SummaryScores(*f1(kept, truth.user_summary, truth.how), *rank_correlations(scores, truth))


def mean_scores(videos: Sequence[SummaryScores]) -> SummaryScores:
    """The mean over videos, for each measure over those where it is defined."""
    return SummaryScores(*(mean_defined([getattr(v, f.name) for v in videos]) for f in fields(SummaryScores)))


def mean_defined(values: Sequence[float]) -> float:
    """The mean of all that are not nan; nan if none are left."""
    defined = [v for v in values if not math.isnan(v)]
    return float(np.mean(defined)) if defined else math.nan


def summarize(scores: Array, truth: Truth, ratio: float = RATIO, knapsack: Knapsack | None = None) -> Array:
    """The frames (n_frames,) of the shots with the greatest total of mean scores that `ratio` of the video can hold.
    None, if every shot is longer than that."""
    values = shot_scores(frame_scores(scores, truth), truth.change_points)
    lengths = truth.change_points[:, 1] - truth.change_points[:, 0] + 1
    room = math.floor(ratio * truth.n_frames + 1e-9)  # .29 of 100 frames are 29, though .29 * 100 < 29
    kept = np.zeros(truth.n_frames, bool)
    for shot in (knapsack or _kernel())(values, lengths.astype(np.int64), room):
        first, last = truth.change_points[shot]
        kept[first : last + 1] = True
    return kept


def frame_scores(scores: Array, truth: Truth) -> Array:
    """Step scores carried to all frames. Of two picks that are equally near, the later one counts: the middle frame of
    an even number is the first of its second half."""
    scores = np.asarray(scores, np.float64)
    if scores.shape != truth.picks.shape or not np.isfinite(scores).all():
        raise DataError(
            "these are not a video's scores",
            expected=f"a finite number for each of {len(truth.picks)} steps",
            found=f"shape {scores.shape}, {np.count_nonzero(~np.isfinite(scores))} not finite",
        )
    frames = np.arange(truth.n_frames)
    if truth.spread == "nearest":
        return scores[np.searchsorted((truth.picks[1:] + truth.picks[:-1]) / 2, frames, side="right")]
    return scores[np.maximum(np.searchsorted(truth.picks, frames, side="right") - 1, 0)]


def shot_scores(frames: Array, change_points: Array) -> Array:
    """The mean score of each shot. Sums are of differences to the first frame: equal scores give equal means, where
    rounding would break ties between shots."""
    sums = np.concatenate([[0.0], np.cumsum(frames - frames[0])])
    first, last = change_points.T
    return frames[0] + (sums[last + 1] - sums[first]) / (last + 1 - first)


def f1(kept: Array, users: Array, how: str) -> tuple[float, float, float]:
    """F1, precision and recall of a summary (frames,) against users' (users, frames): mean over users, or those of
    the user it agrees with most. A user who chose nothing is left out; nan if none is left. An empty summary gets 0."""
    return _over_users(_agreement(kept[None], users[users.any(axis=1)])[:, 0], how)


def rank_correlations(scores: Array, truth: Truth) -> tuple[float, float]:
    """Kendall's tau and Spearman's rho at the steps: the mean over users' scores or, without these, the correlation
    with the share of users who chose the step's frame."""
    opinions = truth.user_summary[:, truth.picks].mean(axis=0)[None] if truth.user_scores is None else truth.user_scores
    taus = [kendall_tau(scores, opinion) for opinion in opinions]
    return mean_defined(taus), mean_defined([spearman_rho(scores, opinion) for opinion in opinions])


def random_scores(steps: int, seed: int) -> Array:
    return np.random.default_rng(seed).random(steps)


def constant_scores(steps: int) -> Array:
    """Their summary is the shortest shots, as many as fit."""
    return np.ones(steps)


def centre_scores(steps: int) -> Array:
    """Highest in the middle of the video, falling evenly to 0 at its ends."""
    return 1.0 - np.abs(2 * np.arange(steps) - (steps - 1)) / max(steps - 1, 1)


def human_scores(truth: Truth) -> SummaryScores:
    """What one user reaches when judged by the others, mean over users. Correlations are with each other user's
    scores or, without these, with the share of the others who chose a step."""
    chose = truth.user_summary[truth.user_summary.any(axis=1)]
    agreement = _agreement(chose, chose)
    each = [_over_users(np.delete(agreement[:, i], i, axis=1), truth.how) for i in range(len(chose))]
    f, p, r = (mean_defined([one[i] for one in each]) for i in range(3))
    if truth.user_scores is not None:
        given = truth.user_scores
        pairs = [(given[i], given[j]) for i in range(len(given)) for j in range(i)]
    else:
        marks = truth.user_summary[:, truth.picks].astype(np.int64)
        pairs = [(one, marks.sum(axis=0) - one) for one in marks]
    taus, rhos = ([correlate(a, b) for a, b in pairs] for correlate in (kendall_tau, spearman_rho))
    return SummaryScores(f, p, r, mean_defined(taus), mean_defined(rhos))


def kendall_tau(x: Array, y: Array) -> float:
    """Kendall's tau-b; nan if either is constant."""
    _, x = np.unique(x, return_inverse=True)
    _, y = np.unique(y, return_inverse=True)
    pairs, x_tied, y_tied = len(x) * (len(x) - 1) // 2, _tied(x), _tied(y)
    if pairs in (x_tied, y_tied):
        return math.nan
    both_tied = _tied(x * (int(y.max()) + 1) + y)
    discordant = _inversions(y[np.lexsort((y, x))])
    surplus = pairs - x_tied - y_tied + both_tied - 2 * discordant
    return surplus / math.sqrt((pairs - x_tied) * (pairs - y_tied))


def spearman_rho(x: Array, y: Array) -> float:
    """Pearson's correlation of ranks, ties sharing the mean of theirs; nan if either is constant."""
    a, b = _ranks(x), _ranks(y)
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else math.nan


def _kernel() -> Knapsack:
    from fedreel.kernels.knapsack import knapsack

    return knapsack


def _agreement(kept: Array, users: Array) -> Array:
    """F1, precision and recall of every summary with every user, (3, summaries, users)."""
    a, b = kept.astype(np.float64), users.astype(np.float64)
    common, ours, theirs = a @ b.T, a.sum(axis=1)[:, None], b.sum(axis=1)[None]
    return np.stack([2 * common / (ours + theirs), common / np.maximum(ours, 1), common / theirs])


def _over_users(agreement: Array, how: str) -> tuple[float, float, float]:
    """F1, precision and recall from those with each user, (3, users)."""
    if not agreement.shape[1]:
        return math.nan, math.nan, math.nan
    chosen = agreement.mean(axis=1) if how == "mean" else agreement[:, agreement[0].argmax()]
    return float(chosen[0]), float(chosen[1]), float(chosen[2])


def _ranks(x: Array) -> Array:
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _tied(places: Array) -> int:
    """How many pairs are equal."""
    _, count = np.unique(places, return_counts=True)
    return int((count * (count - 1) // 2).sum())


def _inversions(places: Array) -> int:
    """How many pairs stand in descending order, in O(n log n): two numbers differ first in one bit. From the highest
    bit on, numbers lie grouped by the bits above it, in their old order; a 1 before a 0 of its group is a pair."""
    total = 0
    for bit in reversed(range(int(places.max()).bit_length())):
        group, one = places >> (bit + 1), (places >> bit) & 1
        before = np.cumsum(one) - one
        start = np.searchsorted(group, group)
        total += int((before - before[start])[one == 0].sum())
        places = places[np.argsort(places >> bit, kind="stable")]
    return total
