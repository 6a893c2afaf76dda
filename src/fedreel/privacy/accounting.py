"""Epsilon of noisy sums that were given away, by Google's dp-accounting; and the noise that an epsilon needs.

Poisson samples are counted for neighbours that differ by one unit more or less. A sample of fixed size is counted for
neighbours in which one unit is replaced by another: the sum then differs by twice what one unit adds."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from fedreel.errors import FedreelError, RecipeError

Accountant = Literal["pld", "rdp"]
_STEP = 1e-3  # of privacy losses, where they are laid on a grid; rounded up, so that epsilon is never too small
_MOST_NOISE = 14.0  # its logarithm
_CLOSE = 1e-3  # of a noise that is searched for


@dataclass(frozen=True)
class Release:
    """Sums with Gaussian noise, `times` of them. `noise` is its standard deviation, in the most that one unit adds to a
    sum. Each sum is over a sample: every unit with probability `rate`, or, where there is a `pool`, that share of the
    pool's units. A sample that others can foresee hides nobody: then `rate` is 1."""

    noise: float
    times: int
    rate: float = 1.0
    pool: int = 0


def epsilon(releases: Sequence[Release], delta: float, accountant: Accountant = "pld") -> float:
    """What all of it together gives away, at this delta; infinite without noise."""
    counted = [r for r in releases if r.times]
    if not counted:
        return 0.0
    if any(r.noise <= 0 for r in counted):
        return math.inf
    _check(counted, accountant)
    return _by_losses(tuple(counted), delta) if accountant == "pld" else _by_moments(tuple(counted), delta)


def noise_for(
    target: float, delta: float, releases: Callable[[float], Sequence[Release]], accountant: Accountant = "pld"
) -> float:
    """The least noise with which `releases(noise)` keep within the target, to a thousandth of it."""

    def excess(log_noise: float) -> float:
        return math.log(epsilon(releases(math.exp(log_noise)), delta, accountant) / target)

    low = high = 0.0
    while excess(high) > 0:
        low, high = high, high + 1
        if high > _MOST_NOISE:
            raise RecipeError(
                "no amount of noise keeps within this epsilon",
                expected=f"epsilon {target:g} at delta {delta:g}",
                hint="something else is given away beside it, such as tests: give them more noise, or switch them off",
            )
    while low == high or excess(low) <= 0:
        low, high = low - 1, low
    found = _library_root()(excess, low, high, xtol=_CLOSE / 2)
    while excess(found) > 0:
        found += _CLOSE / 2
    return math.exp(found)


def _check(releases: Sequence[Release], accountant: Accountant) -> None:
    pools = [r for r in releases if r.rate < 1 and r.pool]
    if pools and accountant == "pld":
        raise RecipeError(
            "samples of fixed size can be counted by moments alone",
            where="[privacy] accountant",
            expected="rdp",
            found="pld",
            hint='or sampling = "poisson", which costs less epsilon',
        )
    if pools and any(r.rate < 1 and not r.pool for r in releases):
        raise FedreelError("Poisson samples and samples of fixed size have different neighbours: count them apart")


@lru_cache(maxsize=512)
def _by_losses(releases: tuple[Release, ...], delta: float) -> float:
    """By the distribution of the privacy loss."""
    parts = [_loss(r.noise, r.rate).self_compose(r.times) for r in releases]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part)
    return float(whole.get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _loss(noise: float, rate: float) -> Any:
    from_gaussian = _library().pld.privacy_loss_distribution.from_gaussian_mechanism
    return from_gaussian(noise, sampling_prob=rate, value_discretization_interval=_STEP)


@lru_cache(maxsize=512)
def _by_moments(releases: tuple[Release, ...], delta: float) -> float:
    """By Rényi divergences."""
    dp = _library()
    replaced = any(r.rate < 1 and r.pool for r in releases)
    relation = dp.NeighboringRelation
    counted = dp.rdp.RdpAccountant(
        neighboring_relation=relation.REPLACE_ONE if replaced else relation.ADD_OR_REMOVE_ONE
    )
    for r in releases:
        counted.compose(event_of(r, replaced), r.times)
    return float(counted.get_epsilon(delta))


def event_of(release: Release, replaced: bool) -> Any:
    """One of the sums as dp-accounting knows it; `replaced` where neighbours have one unit in place of another."""
    dp = _library()
    gaussian = dp.GaussianDpEvent(release.noise / 2 if replaced else release.noise)
    if release.rate >= 1:
        return gaussian
    if release.pool:
        drawn = round(release.rate * release.pool)
        return dp.SampledWithoutReplacementDpEvent(release.pool, drawn, gaussian)
    return dp.PoissonSampledDpEvent(release.rate, gaussian)


def _library_root() -> Any:
    _library()
    from scipy.optimize import brentq  # comes with it

    return brentq


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld.privacy_loss_distribution
        import dp_accounting.rdp
    except ImportError as error:
        raise FedreelError(
            "privacy is counted by a library that is not installed",
            expected="dp-accounting",
            hint="pip install 'fedreel[privacy]'",
        ) from error
    logging.getLogger("absl").setLevel(logging.ERROR)  # orders that do not converge are left out, which is safe
    return dp_accounting
