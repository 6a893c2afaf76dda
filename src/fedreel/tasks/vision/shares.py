"""A share of labelled samples, the same share of every class."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedreel.errors import RecipeError


def nested_share(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Rows, sorted, that are this share of each class, at least one of it. Those of a smaller share are among them, and
    nothing but the division into classes and the seed decides which they are."""
    if not 0 < share <= 1:
        raise RecipeError("not a share of labelled images", expected="more than 0, at most 1", found=str(share))
    order = np.random.default_rng(seed).permutation(len(labels))
    return first_of_each(labels, order, lambda size: max(1, round(share * size)))


def first_of_each(labels: np.ndarray, order: np.ndarray, count: Callable[[int], int]) -> np.ndarray:
    """In this order, the first of each class, as many as `count` says for a class of some size; sorted."""
    members = (order[labels[order] == label] for label in np.unique(labels))
    return np.sort(np.concatenate([order[:0], *(rows[: count(len(rows))] for rows in members)]))
