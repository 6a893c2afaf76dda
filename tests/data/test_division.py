"""Shares of labels: nested, even, and the same whatever the classes are called."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fedreel.data.division import nested_share


def test_smaller_shares_lie_inside_larger_ones_class_by_class() -> None:
    labels = np.random.default_rng(5).integers(0, 7, 500)
    before: set[int] = set()
    for share in (0.001, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0):
        rows = nested_share(labels, share, 9)
        assert rows.tolist() == sorted(set(rows.tolist()))
        assert before <= set(rows.tolist())
        before = set(rows.tolist())
        for label, size in Counter(labels.tolist()).items():
            assert (labels[rows] == label).sum() == max(1, round(share * size))
    assert before == set(range(500))


def test_a_share_is_the_same_whatever_the_classes_are_called() -> None:
    labels = np.random.default_rng(5).integers(0, 7, 300)
    renamed = np.array([40, 3, 22, 5, 1, 0, 17])[labels]
    assert nested_share(labels, 0.1, 1).tolist() == nested_share(renamed, 0.1, 1).tolist()
    assert nested_share(labels, 0.1, 1).tolist() != nested_share(labels, 0.1, 2).tolist()


def test_a_share_is_drawn_evenly() -> None:
    counts = np.zeros(20)
    for seed in range(2000):
        counts[nested_share(np.repeat([0, 1], 10), 0.3, seed)] += 1
    assert abs(counts / 2000 - 0.3).max() < 0.05  # five standard deviations


def test_nothing_has_no_share() -> None:
    assert nested_share(np.zeros(0, int), 0.5, 0).tolist() == []
