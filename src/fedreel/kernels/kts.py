"""Kernel temporal segmentation (Potapov et al. 2014): where a video changes from one shot to the next."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedreel.errors import DataError, RecipeError, nearest
from fedreel.kernels.native import native, plain

KERNELS = ("cosine", "linear", "precomputed")
ROWS = 1024  # rows of the kernel matrix held at a time, so that long videos need no n x n memory
TIMES = 1.5  # of the features' variance: less would cut noise at every other step
SAME = 1e-12  # a variance that is rounding
STRIDE = 64  # candidates compared in one go before looking which of them was the best


def kts(features: ArrayLike, max_changes: int, *, vmax: float = 1.0, kernel: str = "cosine") -> np.ndarray:
    """Starts of all segments but the first, for the number of changes that is worth its penalty.

    The best segmentation with k changes has a within-segment scatter I[k]. Of k = 0 ... max_changes the one with
    the least I[k] / n + vmax * k / (2n) * (log(n / k) + 1) is taken, the smaller k where two are equal. The scatter
    of a segment is the sum of K[t, t] minus the mean row sum of its block of K. Kernel `cosine` is K = X X^T of
    features (n, d) with rows of length 1, `linear` of the features as they are; `precomputed` takes K itself (n, n).
    """
    if not vmax >= 0:
        raise RecipeError("vmax of a segmentation is out of range", expected="0 or more", found=f"{vmax}")
    x = _checked(features, max_changes, kernel)
    n = len(x)
    scatter, parents = _best_segmentations(x, min(int(max_changes), n - 1), kernel)
    changes = np.arange(1, len(scatter))
    costs = scatter / n
    costs[1:] += vmax * changes / (2 * n) * (np.log(n / changes) + 1)
    return _starts(parents, int(np.argmin(costs)))


def kts_by_variance(features: ArrayLike, max_changes: int) -> np.ndarray:
    """As `kts` with cosines, at a vmax of TIMES the variance of the rows of length 1. A vmax of 1 suits features that
    point about everywhere; of features that all point nearly the same way it would find no change at all."""
    x = _checked(features, max_changes, "cosine")
    variance = float(np.square(x).sum()) / len(x)
    return kts(x, max_changes if variance > SAME else 0, vmax=TIMES * variance, kernel="linear")


def cpd(features: ArrayLike, changes: int, *, kernel: str = "cosine") -> np.ndarray:
    """Starts of all segments but the first, for the least scatter with exactly this number of changes (see kts)."""
    x = _checked(features, changes, kernel)
    if changes > len(x) - 1:
        raise DataError(
            "more changes than there are steps to change at", expected=f"up to {len(x) - 1}", found=f"{changes}"
        )
    return _starts(_best_segmentations(x, int(changes), kernel)[1], int(changes))


def frame_segments(starts: ArrayLike, picks: ArrayLike, n_frames: int) -> np.ndarray:
    """Frame segments (n_seg, 2), first and last frame of each, for segments that start at these steps.

    Step i stands for the frames picks[i] ... picks[i+1] - 1. The first segment reaches back to frame 0 and the last
    one on to the end, so the segments tile the video.
    """
    positions = _rising("picks", picks, 0, n_frames)
    begin = np.append(0, positions[_rising("starts", starts, 1, positions.size)])
    return np.stack([begin, np.append(begin[1:], n_frames) - 1], axis=1)


def _rising(name: str, given: ArrayLike, low: int, high: int) -> np.ndarray:
    numbers = np.asarray(given)
    whole = numbers.ndim == 1 and (numbers.size == 0 or np.issubdtype(numbers.dtype, np.integer))
    if not whole or (np.diff(numbers.astype(np.int64), prepend=low - 1, append=high) < 1).any():
        raise DataError(
            f"{name} do not fit the video",
            expected=f"whole numbers from {low} to {high - 1}, each larger than the one before",
            found=np.array2string(numbers, threshold=8),
        )
    return numbers.astype(np.int64)


def _checked(features: ArrayLike, changes: int, kernel: str) -> np.ndarray:
    if kernel not in KERNELS:
        raise RecipeError("unknown kernel for segmentation", found=repr(kernel), hint=nearest(str(kernel), KERNELS))
    if changes != int(changes) or changes < 0:
        raise RecipeError("the number of changes is out of range", expected="0 or more", found=f"{changes}")
    x = plain(features)
    if x.ndim != 2 or x.size == 0 or (kernel == "precomputed" and x.shape[0] != x.shape[1]):
        shape = "(n, n)" if kernel == "precomputed" else "(n, d)"
        raise DataError(
            "there is nothing to segment", expected=f"{shape} with n of at least 1", found=f"shape {x.shape}"
        )
    if not np.isfinite(x).all():
        raise DataError("features to segment hold a value that is not a number")
    if kernel == "precomputed" and not np.allclose(x, x.T):
        raise DataError("a kernel matrix must be symmetric", found=f"shape {x.shape}, K[i, j] != K[j, i] for some i, j")
    if kernel == "cosine":
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        x = x / np.where(norms > 0, norms, 1)
    # A common offset changes no scatter, but its squares would drown the differences in rounding.
    return x if kernel == "precomputed" else x - x.mean(axis=0)


def _best_segmentations(x: np.ndarray, changes: int, kernel: str) -> tuple[np.ndarray, np.ndarray]:
    """I[k] for k = 0 ... changes; parents[k, l] is where the last segment starts when steps 0 ... l-1 are cut best."""
    n = len(x)
    table = np.full((changes + 1, n + 1), np.inf)
    parents = np.zeros((changes + 1, n + 1), np.int64)
    sums = np.zeros((3, n))
    for start in range(0, n, ROWS):
        stop = min(start + ROWS, n)
        rows = x[start:stop, :stop] if kernel == "precomputed" else x[start:stop] @ x[:stop].T
        _grow(np.ascontiguousarray(rows), start, sums, table, parents)
    return table[:, n], parents


def _starts(parents: np.ndarray, changes: int) -> np.ndarray:
    starts = np.zeros(changes, np.int64)
    end = parents.shape[1] - 1
    for k in range(changes, 0, -1):
        starts[k - 1] = end = parents[k, end]
    return starts


@native()
def _grow(rows, start, sums, table, parents):  # type: ignore[no-untyped-def]
    """Take in some rows of K, step by step, and extend I[k, l] = min over t of I[k-1, t] + scatter(t ... l-1).

    For the segment from t to the step taken in last, sums holds the sum of its block of K, the sum of its diagonal,
    and its scatter. Rounding must not make a scatter negative.
    """
    blocks, traces, scatters = sums[0], sums[1], sums[2]
    for r in range(rows.shape[0]):
        row, last = rows[r], start + r
        own, tail = row[last], 0.0
        for t in range(last - 1, -1, -1):
            tail += row[t]
            blocks[t] += 2 * tail + own
        blocks[last] = own
        for t in range(last + 1):
            traces[t] += own
            scatter = traces[t] - blocks[t] / (last + 1 - t)
            scatters[t] = scatter if scatter > 0 else 0.0
        table[0, last + 1] = scatters[0]
        for k in range(1, min(table.shape[0] - 1, last) + 1):
            before, after = table[k - 1, k : last + 1], scatters[k : last + 1]
            least, first = np.inf, 0
            for c in range(0, after.size, STRIDE):
                low = _least_sum(before[c : c + STRIDE], after[c : c + STRIDE])
                least, first = (low, c) if low < least else (least, first)
            while before[first] + after[first] > least:
                first += 1
            table[k, last + 1], parents[k, last + 1] = least, k + first


@native()
def _least_sum(x, y):  # type: ignore[no-untyped-def]
    """Four minima at a time, so that no comparison waits for the one before."""
    a = b = c = d = np.inf
    whole = x.size // 4 * 4
    for t in range(0, whole, 4):
        p, q, r, s = x[t] + y[t], x[t + 1] + y[t + 1], x[t + 2] + y[t + 2], x[t + 3] + y[t + 3]
        a, b, c, d = p if p < a else a, q if q < b else b, r if r < c else c, s if s < d else d
    for t in range(whole, x.size):
        p = x[t] + y[t]
        a = p if p < a else a
    return min(min(a, b), min(c, d))
