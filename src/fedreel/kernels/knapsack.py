"""The 0/1 knapsack: which shots make the best summary that still fits the budget."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedreel.errors import DataError
from fedreel.kernels.native import native, plain


def knapsack(values: ArrayLike, weights: ArrayLike, capacity: int) -> np.ndarray:
    """Indices, ascending, of the items with the largest total value whose total weight is at most capacity.

    Weights and capacity are whole numbers of at least 0. Ties keep the earlier item: where two choices are equally
    good, look at the last item that only one of them holds; the choice without it wins. So an item that adds
    nothing (a value of 0 or less) is never chosen.
    """
    worth, load = _checked(values, weights, capacity)
    room = min(int(capacity), sum(load.tolist()))
    needed = np.zeros((worth.size, room + 1), np.uint8)
    _fill(worth, load, np.zeros(room + 1), np.zeros(room + 1), needed)
    chosen = []
    for item in range(worth.size - 1, -1, -1):
        if needed[item, room]:
            chosen.append(item)
            room -= int(load[item])
    return np.array(chosen[::-1], np.int64)


def _checked(values: ArrayLike, weights: ArrayLike, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    worth, load = plain(values), np.asarray(weights)
    if worth.ndim != 1 or load.shape != worth.shape:
        raise DataError(
            "values and weights of a knapsack do not belong together",
            expected="two lists of the same length",
            found=f"shapes {worth.shape} and {load.shape}",
        )
    if not np.isfinite(worth).all():
        raise DataError("a value of a knapsack is not a number", found=str(worth[~np.isfinite(worth)][0]))
    whole = load.size == 0 or np.issubdtype(load.dtype, np.integer)
    if not whole or (load < 0).any() or capacity != int(capacity) or capacity < 0:
        raise DataError(
            "weights and capacity of a knapsack must be whole numbers of at least 0",
            found=f"capacity {capacity}, weights of {load.dtype} from {load.min(initial=0)}",
        )
    return worth, plain(load, np.int64)


@native()
def _fill(values, weights, best, better, needed):  # type: ignore[no-untyped-def]
    """best[w]: the most that fits into w with the items so far; needed[i, w]: it cannot be had without item i.

    Plain loops and no allocation: slice assignments alone would take numba seconds to compile.
    """
    for i in range(values.size):
        weight, value = weights[i], values[i]
        if weight >= best.size:
            continue
        for w in range(weight):
            better[w] = best[w]
        without, before, result, mark = best[weight:], best[: best.size - weight], better[weight:], needed[i, weight:]
        for w in range(result.size):
            taken = before[w] + value
            mark[w] = taken > without[w]
            result[w] = taken if taken > without[w] else without[w]
        best, better = better, best
