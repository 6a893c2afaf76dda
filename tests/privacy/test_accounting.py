"""Epsilon against the library's own accountants and a closed form; noise that an epsilon needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedreel.errors import RecipeError
from fedreel.privacy.accounting import Release, epsilon, noise_for

dp = pytest.importorskip("dp_accounting", reason="needs the extra 'privacy'")


def counted(accountant: Any, events: Sequence[tuple[Any, int]], delta: float) -> float:
    for event, times in events:
        accountant.compose(event, times)
    return float(accountant.get_epsilon(delta))


def gaussian(noise: float, times: int, delta: float) -> float:
    """Balle and Wang 2018: `times` Gaussian sums are one with noise / sqrt(times)."""
    s = noise / math.sqrt(times)

    def over(eps: float) -> float:
        return norm.cdf(0.5 / s - eps * s) - math.exp(eps) * norm.cdf(-0.5 / s - eps * s) - delta

    return float(brentq(over, 0, 200))


@pytest.mark.parametrize(
    ("noise", "times", "rate"), [(1.0, 100, 0.1), (0.8, 1000, 0.01), (2.5, 30, 0.5), (4.0, 10, 1.0)]
)
def test_epsilon_is_the_librarys(noise: float, times: int, rate: float) -> None:
    plain = dp.GaussianDpEvent(noise)
    event = plain if rate == 1 else dp.PoissonSampledDpEvent(rate, plain)
    for name, theirs in (("pld", dp.pld.PLDAccountant()), ("rdp", dp.rdp.RdpAccountant())):
        expected = counted(theirs, [(event, times)], 1e-5)
        assert epsilon([Release(noise, times, rate)], 1e-5, name) == pytest.approx(expected, abs=1e-3)  # type: ignore[arg-type]


def test_rounds_and_tests_add_up_as_the_library_composes_them() -> None:
    events = [(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(1.3)), 40), (dp.GaussianDpEvent(8.0), 4)]
    ours = [Release(1.3, 40, 0.2), Release(8.0, 4)]
    assert epsilon(ours, 1e-6) == pytest.approx(counted(dp.pld.PLDAccountant(), events, 1e-6), abs=1e-3)


@pytest.mark.parametrize(("noise", "times"), [(1.0, 1), (5.0, 100), (20.0, 3)])
def test_without_sampling_it_is_the_gaussian_mechanisms_closed_form(noise: float, times: int) -> None:
    assert epsilon([Release(noise, times)], 1e-5) == pytest.approx(gaussian(noise, times, 1e-5), abs=1e-3)


def test_samples_of_fixed_size_count_for_replaced_units_with_half_the_noise() -> None:
    event = dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(2.0))
    theirs = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    assert epsilon([Release(4.0, 50, 0.1, 1000)], 1e-5, "rdp") == pytest.approx(counted(theirs, [(event, 50)], 1e-5))
    with pytest.raises(RecipeError, match="rdp"):
        epsilon([Release(4.0, 50, 0.1, 1000)], 1e-5, "pld")


def test_a_sample_that_is_everybody_needs_no_pool() -> None:
    assert epsilon([Release(4.0, 5, 1.0, 100)], 1e-5) == epsilon([Release(4.0, 5)], 1e-5)


def test_nothing_given_away_is_nothing_and_no_noise_is_all() -> None:
    assert epsilon([Release(1.0, 0, 0.1)], 1e-5) == 0
    assert epsilon([Release(0.0, 1)], 1e-5) == math.inf


def test_the_noise_for_an_epsilon_is_the_least() -> None:
    noise = noise_for(3.0, 1e-5, lambda z: [Release(z, 60, 0.05), Release(10.0, 2)])
    assert epsilon([Release(noise, 60, 0.05), Release(10.0, 2)], 1e-5) <= 3.0
    assert epsilon([Release(0.998 * noise, 60, 0.05), Release(10.0, 2)], 1e-5) > 3.0


def test_a_budget_that_tests_alone_exceed_is_refused() -> None:
    with pytest.raises(RecipeError, match="no amount of noise"):
        noise_for(0.5, 1e-5, lambda z: [Release(z, 10, 0.1), Release(1.0, 10)])
