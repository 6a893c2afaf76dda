"""Epsilon against accountants of other libraries, for the same events and the same way of counting."""

from __future__ import annotations

import pytest

from fedreel.privacy.accounting import Release, epsilon, event_of

pytest.importorskip("dp_accounting", reason="needs the extra 'privacy'")
DELTA = 1e-5
EVENTS = [(0.1, 2.0, 50), (0.01, 0.8, 100), (0.001, 0.6, 2000), (0.1, 0.8, 50)]  # rate, noise, times
WHOLE = (*range(2, 64), 128, 256, 512)  # orders
INSTALL = "compares with another library: pip install"


@pytest.mark.parametrize(("rate", "noise", "times"), EVENTS)
def test_opacus_counts_the_same_moments_at_whole_orders(rate: float, noise: float, times: int) -> None:
    """At others dp-accounting rounds up and Opacus does not."""
    opacus = pytest.importorskip("opacus.accountants", reason=f"{INSTALL} opacus")
    from dp_accounting.rdp import RdpAccountant

    theirs = opacus.RDPAccountant()
    theirs.history = [(noise, rate, times)]
    ours = RdpAccountant(orders=WHOLE)
    ours.compose(event_of(Release(noise, times, rate), replaced=False), times)
    assert ours.get_epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA, alphas=[*WHOLE]), abs=1e-3)


@pytest.mark.parametrize(("rate", "noise", "times"), EVENTS[:2])
def test_opacus_bounds_the_same_loss(rate: float, noise: float, times: int) -> None:
    """Its PRV accountant gives an upper bound, off by so much as it is told to be, and half of that again."""
    opacus = pytest.importorskip("opacus.accountants", reason=f"{INSTALL} opacus")
    theirs = opacus.PRVAccountant()
    theirs.history = [(noise, rate, times)]
    bound = theirs.get_epsilon(DELTA, eps_error=0.01)
    assert bound - 0.015 <= epsilon([Release(noise, times, rate)], DELTA) <= bound + 1e-3


@pytest.mark.parametrize("way", ["rdp", "pld"])
@pytest.mark.parametrize(("rate", "noise", "times"), EVENTS[:2])
def test_pfl_counts_the_same_by_moments_and_by_losses(rate: float, noise: float, times: int, way: str) -> None:
    pfl = pytest.importorskip("pfl.privacy", reason=f"{INSTALL} pfl")
    kind = pfl.RDPPrivacyAccountant if way == "rdp" else pfl.PLDPrivacyAccountant
    expected = kind(times, rate, "gaussian", None, DELTA, noise).epsilon
    assert epsilon([Release(noise, times, rate)], DELTA, way) == pytest.approx(expected, abs=1e-3)  # type: ignore[arg-type]
