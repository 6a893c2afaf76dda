"""How unlike a sample is: sums over owners, the rate of false alarms, what is projected."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedreel.metrics.familiarity import RATE, WIDTH, Sums, histogram, projected, sequence_look, threshold


def looks(samples: int, seed: int, width: int = 5) -> Tensor:
    """Numbers that go together, on different scales."""
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randn(width, width, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    scales = 10.0 ** torch.arange(width)
    return 3 + scales * (torch.randn(samples, width, generator=draw, dtype=torch.float64) @ mixed)


def test_sums_of_owners_give_the_space_of_all_samples() -> None:
    given = looks(90, 0)
    parts = Sums.of(given[:10]) + Sums.of(given[10:11]) + Sums.of(given[11:])
    whole, added = Sums.of(given).space(), parts.space()
    torch.testing.assert_close(added.mean, whole.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(added.distances(given), whole.distances(given), rtol=1e-9, atol=1e-9)


def test_of_many_samples_distances_are_mahalanobis_s() -> None:
    given, asked = looks(50_000, 1), looks(4, 2)
    away = asked - given.mean(0)
    inverse = torch.linalg.inv(torch.cov(given.T))
    expected = torch.einsum("nd,de,ne->n", away, inverse, away).div(5).sqrt()
    torch.testing.assert_close(Sums.of(given).space().distances(asked), expected, rtol=1e-2, atol=0)


def test_a_number_that_was_always_the_same_is_compared_as_it_is() -> None:
    given = torch.cat([looks(40, 3, 2), torch.full((40, 1), 7.0, dtype=torch.float64)], 1)
    space = Sums.of(given).space()
    same, other = given.mean(0, keepdim=True), given.mean(0, keepdim=True) + torch.tensor([0.0, 0.0, 30.0])
    assert space.distances(same) == pytest.approx(0, abs=1e-6)
    assert float(space.distances(other)) > 10


def test_as_few_held_out_samples_as_said_are_called_unlike() -> None:
    space = Sums.of(looks(2000, 4)).space()
    farthest, alarms = threshold(histogram(space.distances(looks(3000, 5))))
    assert alarms == RATE
    assert farthest is not None
    assert float((space.distances(looks(20_000, 6)) > farthest).double().mean()) < 1.3 * RATE


@pytest.mark.parametrize(("samples", "beyond", "rate"), [(19, 0, 0.05), (98, 3, 0.05), (199, 9, 0.05)])
def test_of_few_samples_the_farthest_is_the_limit(samples: int, beyond: int, rate: float) -> None:
    distances = torch.arange(1, samples + 1).double()
    farthest, alarms = threshold(histogram(distances))
    assert farthest is not None
    assert int((distances > farthest).sum()) <= beyond
    assert farthest < 1.05 * (samples - beyond)  # no farther than a step beyond it
    assert alarms == pytest.approx(rate)


def test_of_too_few_samples_nothing_is_called_unlike() -> None:
    assert threshold(histogram(torch.ones(18))) == (None, None)


def test_histograms_add_up_and_lose_nothing() -> None:
    found = torch.tensor([0.0, 1e-9, 1.0, 5.0, 1e9])
    assert int(histogram(found).sum()) == 5
    assert torch.equal(histogram(found[:2]) + histogram(found[2:]), histogram(found))
    assert histogram(torch.zeros(0)).sum() == 0


def test_long_looks_become_short_ones_that_are_as_far_apart() -> None:
    given = torch.randn(20, 4000, generator=torch.Generator().manual_seed(7))
    short = projected(given)
    assert short.shape == (20, WIDTH)
    assert torch.equal(short, projected(given))
    ratio = torch.cdist(short, short)[0, 1:] / torch.cdist(given.double(), given.double())[0, 1:]
    assert ((ratio > 0.6) & (ratio < 1.4)).all()
    assert torch.equal(projected(given[:, :WIDTH]), given[:, :WIDTH].double())


def test_a_sequence_looks_like_its_mean_and_deviation() -> None:
    rows = torch.tensor([[[1.0, 5.0], [3.0, 5.0]]])
    assert sequence_look(rows).tolist() == [[2.0, 5.0, 1.0, 0.0]]
