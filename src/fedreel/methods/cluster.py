"""k-means for a few dozen points: seeded, many starts, the best kept; and how well two groupings agree."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def k_means(points: Array, k: int, seed: int = 0, starts: int = 20, steps: int = 100) -> Array:
    """The group of each row, numbered in the order in which groups first occur. With fewer distinct points than
    groups some groups are left out."""
    points = np.asarray(points, np.float64)
    k = min(k, len(np.unique(points, axis=0)))
    rng = np.random.default_rng([seed, 0xC1])
    best, cost = np.zeros(len(points), np.int64), np.inf
    for _ in range(starts):
        groups = _once(points, _spread(points, k, rng), steps)
        spent = sum(((points[groups == g] - points[groups == g].mean(0)) ** 2).sum() for g in np.unique(groups))
        if spent < cost - 1e-12 * (1 + abs(cost) if np.isfinite(cost) else 1):
            best, cost = groups, float(spent)
    _, first, inverse = np.unique(best, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def adjusted_rand_index(a: Array, b: Array) -> float:
    """Agreement of two groupings: 1 for the same, 0 on average for unrelated ones (Hubert and Arabie 1985)."""
    if len(a) < 2:
        return 1.0
    _, a = np.unique(a, return_inverse=True)
    _, b = np.unique(b, return_inverse=True)
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)
    both, left, right = (_pairs(x).sum() for x in (table, table.sum(1), table.sum(0)))
    expected, most = left * right / _pairs(np.array(len(a))), (left + right) / 2
    return 1.0 if most == expected else float((both - expected) / (most - expected))


def _once(points: Array, centres: Array, steps: int) -> Array:
    groups = np.full(len(points), -1)
    for _ in range(steps):
        nearest = ((points[:, None] - centres[None]) ** 2).sum(-1).argmin(1)
        if (nearest == groups).all():
            break
        groups = nearest
        centres = np.stack([points[groups == g].mean(0) if (groups == g).any() else c for g, c in enumerate(centres)])
    return groups


def _spread(points: Array, k: int, rng: np.random.Generator) -> Array:
    """k-means++: each next centre far from those before, in proportion to the squared distance."""
    chosen = [points[rng.integers(len(points))]]
    while len(chosen) < k:
        far = ((points[:, None] - np.stack(chosen)[None]) ** 2).sum(-1).min(1)
        share = far / far.max() if far.max() > 0 else np.ones(len(far))
        chosen.append(points[rng.choice(len(points), p=share / share.sum())])
    return np.stack(chosen)


def _pairs(n: Array) -> Array:
    return n * (n - 1) / 2
