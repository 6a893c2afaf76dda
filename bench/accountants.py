"""Is epsilon here what others say it is, for the same events? Beside Opacus and pfl, if they are installed.

    pip install 'fedreel[privacy]' opacus pfl
    python bench/accountants.py [--delta 1e-5]

An event is a sum with Gaussian noise over a Poisson sample, so many times: of clients (large samples, tens of rounds)
and of examples (small samples, thousands of steps). Two ways to count, each compared with its like. By moments: pfl's
orders are the same; Opacus is compared at whole orders, for which there is a closed form (at others dp-accounting, by
which epsilon is counted here, rounds up and Opacus does not). By the distribution of the loss: pfl's PLD, which lays it
on a grid of 1e-4 where 1e-3 is used here; and the estimate, not the bounds, of Opacus' and pfl's PRV accountants, which
are told to be off by 1e-3 at most (their defaults are 0.01 and 0.07). A dash stands where one gives up by itself.
`worst` is the largest difference in epsilon, over epsilon where that is above 1. The last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable
from importlib.util import find_spec

from fedreel.privacy.accounting import Release, epsilon, event_of

EVENTS = {
    "client": [(0.01, 0.8, 50), (0.01, 2.0, 50), (0.1, 0.8, 50), (0.1, 2.0, 50), (1.0, 8.0, 50)],
    "example": [(0.001, 0.6, 2000), (0.02, 1.5, 2000)],
}
WHOLE = (*range(2, 64), 128, 256, 512)  # orders
OFF = 1e-3  # what PRV accountants are told to be off by
Count = Callable[[float, float, int, float], float]  # rate, noise, times, delta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delta", type=float, default=1e-5)
    delta = parser.parse_args().delta
    warnings.simplefilter("ignore")
    peers = accountants()
    names = [name for way, others in peers.items() for name in (f"fedreel {way}", *others)]
    print(f"{'unit':<8}{'rate':>7}{'noise':>7}{'times':>7}" + "".join(f"{name:>15}" for name in names))
    worst = {name: 0.0 for found in peers.values() for name in found}
    for unit, events in EVENTS.items():
        for event in events:
            told = {}
            for way, others in peers.items():
                ours = told[f"fedreel {way}"] = ours_of(way, *event, delta)
                for name, count in others.items():
                    told[name] = tried(count, *event, delta)
                    if not math.isnan(told[name]):
                        worst[name] = max(worst[name], difference(ours, told[name]))
            rate, noise, times = event
            cells = ["-" if math.isnan(told[name]) else f"{told[name]:.4f}" for name in names]
            print(f"{unit:<8}{rate:>7g}{noise:>7g}{times:>7}" + "".join(f"{cell:>15}" for cell in cells))
    print("worst: " + (", ".join(f"{name} {value:.1e}" for name, value in worst.items()) or "neither is installed"))
    print(json.dumps({"bench": "accountants", "delta": delta, "worst": worst}))


def accountants() -> dict[str, dict[str, Count]]:
    """By way of counting, those that are installed."""
    found: dict[str, dict[str, Count]] = {"rdp": {}, "whole": {}, "pld": {}}
    if find_spec("opacus"):
        found["whole"]["Opacus RDP"], found["pld"]["Opacus PRV"] = opacus_rdp, opacus_prv
    if find_spec("pfl"):
        found["rdp"]["pfl RDP"] = pfl_rdp
        found["pld"] |= {"pfl PLD": pfl_pld, "pfl PRV": pfl_prv}
    return found


def ours_of(way: str, rate: float, noise: float, times: int, delta: float) -> float:
    release = Release(noise, times, rate)
    if way == "whole":
        return whole_orders(release, delta)
    return epsilon([release], delta, "pld" if way == "pld" else "rdp")


def whole_orders(release: Release, delta: float) -> float:
    """The event as it is counted here, by moments of whole orders alone."""
    from dp_accounting.rdp import RdpAccountant

    counted = RdpAccountant(orders=WHOLE)
    counted.compose(event_of(release, replaced=False), release.times)
    return float(counted.get_epsilon(delta))


def difference(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / max(1.0, abs(theirs))


def tried(count: Count, rate: float, noise: float, times: int, delta: float) -> float:
    """Not a number where an accountant finds its own grid too coarse or too narrow."""
    try:
        return count(rate, noise, times, delta)
    except (RuntimeError, ValueError):
        return math.nan


def opacus_rdp(rate: float, noise: float, times: int, delta: float) -> float:
    from opacus.accountants import RDPAccountant

    counted = RDPAccountant()
    counted.history = [(noise, rate, times)]
    return float(counted.get_epsilon(delta, alphas=[*WHOLE]))


def opacus_prv(rate: float, noise: float, times: int, delta: float) -> float:
    from opacus.accountants import PRVAccountant

    counted = PRVAccountant()
    counted.history = [(noise, rate, times)]
    losses = counted._get_dprv(eps_error=OFF, delta_error=delta / 1000)
    return float(losses.compute_epsilon(delta, delta / 1000, OFF)[1])


def pfl_rdp(rate: float, noise: float, times: int, delta: float) -> float:
    from pfl.privacy import RDPPrivacyAccountant

    return float(RDPPrivacyAccountant(times, rate, "gaussian", None, delta, noise).epsilon)


def pfl_pld(rate: float, noise: float, times: int, delta: float) -> float:
    from pfl.privacy import PLDPrivacyAccountant

    return float(PLDPrivacyAccountant(times, rate, "gaussian", None, delta, noise).epsilon)


def pfl_prv(rate: float, noise: float, times: int, delta: float) -> float:
    from pfl.privacy import PRVPrivacyAccountant

    counted = PRVPrivacyAccountant(times, rate, "gaussian", None, delta, noise, eps_error=OFF, delta_error=delta / 1000)
    return float(counted.epsilon)


if __name__ == "__main__":
    main()
