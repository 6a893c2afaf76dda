"""Linear CKA: its invariances, a case worked by hand, and its two forms against each other."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedreel.errors import DataError
from fedreel.metrics.cka import linear_cka


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def by_centring_matrix(x: Tensor, y: Tensor) -> float:
    """The definition by kernels: HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)), HSIC(K, L) = tr(KHLH)."""
    n = len(x)
    h = torch.eye(n, dtype=torch.double) - 1 / n
    k, m = x @ x.T, y @ y.T
    hsic = [float(torch.trace(a @ h @ b @ h)) for a, b in ((k, m), (k, k), (m, m))]
    return hsic[0] / math.sqrt(hsic[1] * hsic[2])


@pytest.mark.parametrize("shape", [(20, 5), (5, 20)])
def test_features_are_wholly_like_themselves(shape: tuple[int, int]) -> None:
    x = normal(*shape)
    assert linear_cka(x, x) == pytest.approx(1.0, abs=1e-12)


def test_three_samples_of_one_feature_worked_by_hand() -> None:
    # Centred: (-1, 0, 1) and (-4, -1, 5) / 3. Their product is 3, their squares are 2 and 42 / 9: 9 / (2 * 14 / 3).
    x, y = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [1.0], [3.0]])
    assert linear_cka(x, y) == pytest.approx(27 / 28, abs=1e-12)


@pytest.mark.parametrize(("n", "p", "q"), [(30, 4, 7), (6, 40, 50), (10, 4, 30), (10, 30, 4), (8, 8, 8)])
def test_any_shape_gives_the_definition_by_kernels(n: int, p: int, q: int) -> None:
    x, mix = normal(n, p), normal(p, q, seed=1)
    y = x @ mix + normal(n, q, seed=2)
    assert linear_cka(x, y) == pytest.approx(by_centring_matrix(x, y), rel=1e-9)
    assert linear_cka(y, x) == pytest.approx(linear_cka(x, y), rel=1e-12)


@pytest.mark.parametrize(("n", "p"), [(40, 6), (5, 6)])
def test_columns_of_zeros_change_nothing_though_they_change_the_form(n: int, p: int) -> None:
    x, y = normal(n, p), normal(n, p, seed=1)
    wide = torch.cat([y, torch.zeros(n, 100, dtype=torch.double)], dim=1)
    assert linear_cka(x, wide) == pytest.approx(linear_cka(x, y), rel=1e-12)


def test_rotations_scalings_and_shifts_of_either_change_nothing() -> None:
    x, y = normal(50, 6), normal(50, 6, seed=1) + normal(50, 6)
    turn, _ = torch.linalg.qr(normal(6, 6, seed=2))
    before = linear_cka(x, y)
    assert linear_cka(x @ turn, y) == pytest.approx(before, rel=1e-9)
    assert linear_cka(1e-100 * x, 1e-100 * y) == pytest.approx(before, rel=1e-9)
    assert linear_cka(x, y + 100 * normal(6, seed=3)) == pytest.approx(before, rel=1e-9)


def test_a_map_that_stretches_one_feature_changes_it() -> None:
    x = normal(500, 4)
    stretched = x * torch.tensor([100.0, 1.0, 1.0, 1.0])
    assert linear_cka(x, stretched) == pytest.approx(0.5, abs=0.05)  # one of four equal directions: 1 / sqrt(4)


def test_independent_features_of_many_samples_are_unlike() -> None:
    few, many = (linear_cka(normal(n, 5), normal(n, 5, seed=1)) for n in (10, 10_000))
    assert 0 <= many < 0.01 < few


@pytest.mark.parametrize("columns", [1, 30])
def test_a_constant_has_no_likeness(columns: int) -> None:
    constant = torch.full((11, columns), 0.1, dtype=torch.double)  # whose mean over 11 rows is not quite 0.1
    assert math.isnan(linear_cka(constant, normal(11, 3)))
    assert math.isnan(linear_cka(normal(11, 3), constant))
    assert math.isnan(linear_cka(normal(1, 3), normal(1, 3, seed=1)))


def test_single_precision_is_lifted_before_it_is_centred() -> None:
    x, y = (1000 + normal(100, 5)).float(), normal(100, 5, seed=1).float()
    assert linear_cka(x, y) == pytest.approx(by_centring_matrix(x.double() - 1000, y.double()), rel=1e-9)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.ones(3, 2), torch.ones(4, 2)),
        (torch.ones(3), torch.ones(3, 2)),
        (torch.ones(0, 2), torch.ones(0, 2)),
        (torch.ones(3, 2), torch.full((3, 2), math.inf)),
    ],
)
def test_features_that_do_not_match_are_refused(x: Tensor, y: Tensor) -> None:
    with pytest.raises(DataError, match="cannot be compared"):
        linear_cka(x, y)
