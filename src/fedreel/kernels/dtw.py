"""Dynamic time warping: the exact cost of aligning two sequences step by step, one pair or many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import ArrayLike

from fedreel.errors import DataError, RecipeError, nearest
from fedreel.kernels.native import SUM, native, plain

COSTS = ("euclidean", "cosine")
NORMALIZATIONS = ("none", "path", "length")
Work = Callable[[int, int], None]  # do the pairs from start to stop
ROWS = 256  # rows of the cost matrix held at a time, so that memory grows with one length and not with both
CANCELS = 1e-4  # a squared distance below this share of the squared norms is taken again from the differences


def dtw(a: ArrayLike, b: ArrayLike, *, cost: str = "euclidean", normalize: str = "none") -> float:
    """D[n, m] of D[i, j] = cost(a[i], b[j]) + min(D[i-1, j], D[i, j-1], D[i-1, j-1]), in double precision.

    a is (n, d) and b is (m, d); a 1-D array has d = 1. Cost `euclidean` is |x - y|, `cosine` is 1 - cos(x, y); a
    zero vector is at cosine cost 1 from all others and 0 from itself. normalize `path` divides by the number of
    cells of the cheapest path (of several equally cheap ones, the shortest), `length` divides by n + m.
    """
    return float(_many([a, b], np.array([[0, 1]]), cost, normalize)[0])


def distances_to(
    sequences: Sequence[ArrayLike], proxy: ArrayLike, *, cost: str = "euclidean", normalize: str = "none"
) -> np.ndarray:
    """dtw of every sequence to one proxy, as in dtw(sequence, proxy); pairs run side by side on the CPU's cores."""
    last = len(sequences)
    pairs = np.stack([np.arange(last), np.full(last, last)], axis=1)
    return _many([*sequences, proxy], pairs, cost, normalize)


def pairwise(sequences: Sequence[ArrayLike], *, cost: str = "euclidean", normalize: str = "none") -> np.ndarray:
    """The symmetric matrix of dtw between all sequences; pairs run side by side on the CPU's cores."""
    k = len(sequences)
    i, j = np.triu_indices(k, 1)
    matrix = np.zeros((k, k))
    matrix[i, j] = matrix[j, i] = _many(sequences, np.stack([i, j], axis=1), cost, normalize)
    return matrix


def _many(sequences: Sequence[ArrayLike], pairs: np.ndarray, cost: str, normalize: str) -> np.ndarray:
    _check_options(cost, normalize)
    rows = _sequences(sequences)
    found = np.empty((len(pairs), 2))  # for each pair the cost of the cheapest path, and its number of cells
    if len(pairs) and rows[0].shape[1] == 1 and cost == "euclidean" and normalize != "path":
        _side_by_side(_scalar_pairs(rows, pairs, found), len(pairs))
    elif len(pairs):
        _side_by_side(_vector_pairs(rows, pairs, cost, normalize == "path", found), len(pairs))
    if normalize == "path":
        return found[:, 0] / found[:, 1]
    lengths = np.array([len(x) for x in rows])
    return found[:, 0] / lengths[pairs].sum(axis=1) if normalize == "length" else found[:, 0]


def _check_options(cost: str, normalize: str) -> None:
    for name, value, known in (("cost", cost, COSTS), ("normalize", normalize, NORMALIZATIONS)):
        if value not in known:
            raise RecipeError(f"unknown {name} of time warping", found=repr(value), hint=nearest(str(value), known))


def _sequences(given: Iterable[ArrayLike]) -> list[np.ndarray]:
    """All as (steps, d) in double precision, the same d, all finite."""
    found: list[np.ndarray] = []
    for number, one in enumerate(given):
        x = plain(one)
        x = x[:, None] if x.ndim == 1 else x
        if x.ndim != 2 or x.size == 0 or (found and x.shape[1] != found[0].shape[1]):
            raise DataError(
                "a sequence cannot be time-warped",
                expected=f"(steps, {found[0].shape[1] if found else 'd'}) with at least one step",
                found=f"shape {np.shape(one)}",
                where=f"sequence {number}",
            )
        if not np.isfinite(x).all():
            raise DataError("a sequence holds a value that is not a number", where=f"sequence {number}")
        found.append(x)
    return found


def _scalar_pairs(rows: list[np.ndarray], pairs: np.ndarray, found: np.ndarray) -> Work:
    flat = np.concatenate([x[:, 0] for x in rows])
    flipped = np.concatenate([x[::-1, 0] for x in rows])
    ends = np.cumsum([0, *(len(x) for x in rows)])
    longest = max(len(x) for x in rows)

    def work(start: int, stop: int) -> None:
        _diagonals(flat, flipped, ends, pairs[start:stop], np.empty((3, longest + 1)), found[start:stop])

    return work


def _vector_pairs(rows: list[np.ndarray], pairs: np.ndarray, cost: str, count: bool, found: np.ndarray) -> Work:
    ready = [_unit(x) for x in rows] if cost == "cosine" else rows

    def work(start: int, stop: int) -> None:
        for number in range(start, stop):
            x, y = ready[pairs[number, 0]], ready[pairs[number, 1]]
            state = np.full((4, len(y) + 1), np.inf)
            state[:, 0] = 0
            for at in range(0, len(x), ROWS):
                _advance(_costs(x[at : at + ROWS], y, cost), state, count)
            found[number] = state[0, -1], state[2, -1]

    return work


def _side_by_side(work: Work, count: int) -> None:
    """In threads, because the loops leave the interpreter lock and an OpenMP pool would not survive a fork."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(count, cores)
    if threads == 1:
        work(0, count)
        return
    at_once = min(32, -(-count // (4 * threads)))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda start: work(start, min(start + at_once, count)), range(0, count, at_once)))


def _unit(x: np.ndarray) -> np.ndarray:
    """Rows of length 1, zero rows left. Then 1 - cos = |x - y|^2 / 2, which is exactly 0 for equal rows."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    x = x / np.where(largest > 0, largest, 1)  # so that squares neither overflow nor vanish
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)


def _costs(x: np.ndarray, y: np.ndarray, cost: str) -> np.ndarray:
    if x.shape[1] == 1 and cost == "euclidean":
        gaps = x - y.T
        return np.abs(gaps, out=gaps)
    product = x @ y.T
    squares = np.einsum("ij,ij->i", x, x), np.einsum("ij,ij->i", y, y)
    if cost == "euclidean":
        _square_distances(x, y, *squares, product)
        return np.sqrt(product, out=product)
    both_zero = np.ix_(squares[0] == 0, squares[1] == 0)
    ones = np.ones(len(x)), np.ones(len(y))
    _square_distances(x, y, *ones, product)
    product /= 2
    product[both_zero] = 0
    return product


@native(SUM)
def _square_distances(x, y, xx, yy, product):  # type: ignore[no-untyped-def]
    """Turn x.y into |x - y|^2 = |x|^2 + |y|^2 - 2 x.y, but from the differences where that sum would cancel."""
    for i in range(x.shape[0]):
        for j in range(y.shape[0]):
            norms = xx[i] + yy[j]
            square = norms - 2 * product[i, j]
            if not square > CANCELS * norms:
                square = 0.0
                for k in range(x.shape[1]):
                    step = x[i, k] - y[j, k]
                    square += step * step
            product[i, j] = square


@native()
def _advance(costs, state, count):  # type: ignore[no-untyped-def]
    """Carry one row of D over the rows of a block of costs, and with `count` the lengths of the paths to its cells.

    What a row needs of the row before is taken first, in a loop of its own whose steps do not wait for each other.
    """
    best, low, cells, low_cells = state[0], state[1], state[2], state[3]
    for i in range(costs.shape[0]):
        row, above, above_cells = costs[i], best[1:], cells[1:]
        left = left_cells = np.inf
        if count:
            for j in range(row.size):
                up = (above[j] < best[j]) | ((above[j] == best[j]) & (above_cells[j] < cells[j]))
                low[j], low_cells[j] = above[j] if up else best[j], above_cells[j] if up else cells[j]
            for j in range(row.size):
                stay = (left < low[j]) | ((left == low[j]) & (left_cells < low_cells[j]))
                left = (left if stay else low[j]) + row[j]
                left_cells = (left_cells if stay else low_cells[j]) + 1
                above[j], above_cells[j] = left, left_cells
        else:
            for j in range(row.size):
                low[j] = above[j] if above[j] < best[j] else best[j]
            for j in range(row.size):
                left = (left if left < low[j] else low[j]) + row[j]
                above[j] = left
        best[0] = cells[0] = np.inf  # only the first row starts from the corner


@native()
def _diagonals(flat, flipped, ends, pairs, scratch, found):  # type: ignore[no-untyped-def]
    """Scalar sequences, one pair after another, along the anti-diagonals: their cells do not wait for each other.

    Cell (i, j), counted from 1, is on diagonal i + j and kept at index i; y is read backwards to run with i.
    """
    for p in range(pairs.shape[0]):
        first, second = pairs[p, 0], pairs[p, 1]
        x, y = flat[ends[first] : ends[first + 1]], flipped[ends[second] : ends[second + 1]]
        n, m = x.size, y.size
        before, last, now = scratch[0], scratch[1], scratch[2]
        before[0] = 0.0
        last[0] = last[1] = now[0] = np.inf
        for s in range(2, n + m + 1):
            low, high = max(1, s - m), min(n, s - 1)
            corner, above, left = before[low - 1 : high], last[low - 1 : high], last[low : high + 1]
            steps, others, cells = x[low - 1 : high], y[m - s + low : m - s + high + 1], now[low : high + 1]
            for k in range(cells.size):
                best = above[k] if above[k] < left[k] else left[k]
                best = corner[k] if corner[k] < best else best
                cells[k] = best + abs(steps[k] - others[k])
            if high < n:
                now[high + 1] = np.inf  # column 0
            before, last, now = last, now, before
            now[0] = np.inf
        found[p, 0] = last[n]
