"""The knapsack against all subsets, its rule for ties, and its corner cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreel.errors import DataError
from fedreel.kernels.knapsack import knapsack

ITEMS = st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 6)), max_size=10)


def by_all_subsets(values: list[float], weights: list[int], capacity: int) -> list[int]:
    """Of the best subsets that fit, the one without the last item that tells two of them apart."""
    n = len(values)
    subsets = itertools.product((0, 1), repeat=n)  # read from the last item to the first
    fitting = [s for s in subsets if sum(w for w, on in zip(weights[::-1], s) if on) <= capacity]
    best = min(fitting, key=lambda s: (-sum(v for v, on in zip(values[::-1], s) if on), s))
    return [i for i in range(n) if best[n - 1 - i]]


@given(ITEMS, st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_the_choice_equals_that_of_all_subsets_with_ties(items: list[tuple[int, int]], capacity: int) -> None:
    values, weights = [value / 4 for value, _ in items], [weight for _, weight in items]
    assert knapsack(values, weights, capacity).tolist() == by_all_subsets(values, weights, capacity)


@pytest.mark.parametrize("n", [12, 15])
def test_the_choice_equals_that_of_all_subsets_for_real_values(n: int) -> None:
    rng = np.random.default_rng(n)
    values, weights = rng.random(n), rng.integers(1, 60, n)
    capacity = int(0.15 * weights.sum())
    assert knapsack(values, weights, capacity).tolist() == by_all_subsets(values.tolist(), weights.tolist(), capacity)


def test_a_worked_example() -> None:
    assert knapsack([60, 100, 120], [10, 20, 30], 50).tolist() == [1, 2]


def test_ties_keep_the_earlier_item() -> None:
    assert knapsack([1, 1, 1], [2, 2, 2], 2).tolist() == [0]
    assert knapsack([1, 1, 1], [2, 2, 2], 5).tolist() == [0, 1]
    assert knapsack([1, 1, 2], [1, 1, 2], 2).tolist() == [0, 1]
    assert knapsack([2, 1, 1], [2, 1, 1], 2).tolist() == [0]


def test_items_that_add_nothing_are_never_chosen() -> None:
    assert knapsack([0, 3, 0, -1], [1, 1, 0, 0], 10).tolist() == [1]


def test_no_capacity_leaves_only_weightless_items() -> None:
    assert knapsack([5, 2, 0], [1, 0, 0], 0).tolist() == [1]
    assert knapsack([5, 2], [1, 3], 0).tolist() == []


def test_an_item_heavier_than_the_capacity_is_left_out() -> None:
    assert knapsack([100, 1], [11, 10], 10).tolist() == [1]
    assert knapsack([100], [10**12], 10).tolist() == []


def test_everything_fits_into_a_capacity_beyond_all_weights() -> None:
    assert knapsack([0.5, 0.25], [3, 4], 10**15).tolist() == [0, 1]


def test_no_items_give_an_empty_choice_of_whole_numbers() -> None:
    chosen = knapsack([], [], 10)
    assert chosen.shape == (0,)
    assert np.issubdtype(chosen.dtype, np.integer)


def test_values_differ_by_less_than_single_precision_can_tell() -> None:
    assert knapsack([1.0, 1.0 + 1e-12], [1, 1], 1).tolist() == [1]


@pytest.mark.parametrize(
    ("values", "weights", "capacity"),
    [([1, 2], [1], 3), ([math.nan], [1], 3), ([1], [-1], 3), ([1], [1.5], 3), ([1], [1], -1), ([[1]], [[1]], 3)],
)
def test_what_is_no_knapsack_is_refused(values: list[float], weights: list[int], capacity: int) -> None:
    with pytest.raises(DataError, match="knapsack"):
        knapsack(values, weights, capacity)
