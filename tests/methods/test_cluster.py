"""k-means and the adjusted Rand index: planted groups, brute force over all groupings, hand-worked examples."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fedreel.methods.cluster import adjusted_rand_index, k_means


def spent(points: np.ndarray, groups: np.ndarray) -> float:
    """What k-means minimises: squared distances to the mean of one's group."""
    return sum(float(((points[groups == g] - points[groups == g].mean(0)) ** 2).sum()) for g in set(groups.tolist()))


@pytest.mark.parametrize("seed", range(5))
def test_planted_groups_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    planted = rng.permutation(np.repeat(np.arange(4), 8))
    centres = np.array([[0, 0, 0], [10, 0, 0], [0, 10, 0], [0, 0, 10.0]])
    found = k_means(centres[planted] + rng.normal(size=(32, 3)), 4, seed)
    assert adjusted_rand_index(found, planted) == 1.0


@pytest.mark.parametrize("seed", range(12))
def test_no_grouping_of_all_is_better(seed: int) -> None:
    """Seven points without any structure, against every way to put them into at most three groups."""
    points = np.random.default_rng(seed).normal(size=(7, 2))
    best = min(spent(points, np.array(groups)) for groups in product(range(3), repeat=7))
    assert spent(points, k_means(points, 3, seed)) == pytest.approx(best)


def test_the_same_seed_gives_the_same_groups_whatever_was_drawn_before() -> None:
    points = np.random.default_rng(0).normal(size=(40, 2))
    before = points.copy()
    first = k_means(points, 5, seed=3)
    np.random.seed(0)
    assert k_means(points, 5, seed=3).tolist() == first.tolist()
    assert (points == before).all()


def test_groups_are_numbered_in_the_order_in_which_they_occur() -> None:
    points = np.array([[50.0], [0.0], [51.0], [100.0], [1.0], [101.0]])
    for seed in range(10):
        assert k_means(points, 3, seed).tolist() == [0, 1, 0, 2, 1, 2]


def test_with_fewer_distinct_points_than_groups_each_point_is_a_group() -> None:
    assert k_means(np.array([[2.0], [1.0], [2.0], [1.0], [3.0]]), 4).tolist() == [0, 1, 0, 1, 2]
    assert k_means(np.array([[2.0], [1.0]]), 9).tolist() == [0, 1]


def test_one_point_and_equal_points_are_one_group() -> None:
    for k in (1, 3):
        assert k_means(np.array([[7.0, 7.0]]), k).tolist() == [0]
        assert k_means(np.full((5, 2), 0.1), k).tolist() == [0] * 5


def test_one_group_holds_everything() -> None:
    assert k_means(np.arange(6.0)[:, None], 1).tolist() == [0] * 6


def test_scale_and_place_do_not_matter() -> None:
    points = np.random.default_rng(2).normal(size=(12, 1))
    points[:5] += 8
    groups = k_means(points, 2).tolist()
    for scale, place in ((1e-6, 0.0), (1e6, 0.0), (1.0, 1e5)):
        assert k_means(scale * points + place, 2).tolist() == groups


def test_the_adjusted_rand_index_by_hand() -> None:
    """Six points, 3 + 3 against 2 + 2 + 2. Of 15 pairs 6 are together left, 3 right, 2 in both: (2 - 6 * 3 / 15) /
    ((6 + 3) / 2 - 6 * 3 / 15) = 0.8 / 3.3."""
    a, b = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 2, 2])
    assert adjusted_rand_index(a, b) == pytest.approx(8 / 33)
    assert adjusted_rand_index(b, a) == pytest.approx(8 / 33)


def test_the_adjusted_rand_index_below_chance() -> None:
    """Pairs that are together on one side are apart on the other: (0 - 2 * 2 / 6) / (2 - 2 * 2 / 6) = -1/2."""
    assert adjusted_rand_index(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])) == pytest.approx(-0.5)


def test_names_of_groups_do_not_matter() -> None:
    a = np.array([0, 0, 1, 1, 2, 0, 1])
    assert adjusted_rand_index(a, np.array([7, 7, -3, -3, 0, 7, -3])) == 1.0
    assert adjusted_rand_index(a, np.array(["x", "x", "y", "y", "z", "x", "y"])) == 1.0
    assert adjusted_rand_index(np.zeros(5), np.ones(5)) == 1.0
    assert adjusted_rand_index(np.arange(5), np.arange(5)[::-1]) == 1.0


def test_unrelated_groupings_agree_at_chance() -> None:
    rng = np.random.default_rng(0)
    values = [adjusted_rand_index(rng.integers(3, size=60), rng.integers(4, size=60)) for _ in range(300)]
    assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(300)
    assert max(values) < 0.2
    assert adjusted_rand_index(np.zeros(6), np.arange(6)) == 0.0
