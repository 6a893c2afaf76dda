"""FedNova (Wang et al. 2020): clients that take more steps do not count for more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method


@dataclass(frozen=True)
class FedNova(Method):
    """d_k = (w_k - w) / tau_k, with tau_k the steps that client k took, momentum accounted for;
    w <- w + tau sum_k p_k d_k, with tau = sum_k p_k tau_k and p_k = n_k / n. Clients send w + d_k."""

    sends: ClassVar = {**Method.sends, "tau": "count"}

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            average = fed.average(fed.sample(), fed.weights)
            d = average.weights - fed.weights
            fed.weights = (fed.weights + average.number("tau") * d).with_state_of(average.weights)

    def local_training(self, client: Client) -> None:
        fitted = client.fit()
        client.numbers["tau"] = tau = effective_steps(fitted.steps, client.config.momentum)
        w, w_k = client.received, client.current
        client.load((w + (1 / tau) * (w_k - w)).with_state_of(w_k))


def effective_steps(steps: int, momentum: float) -> float:
    """||a_k||_1: how many gradients the way is long if all are equal: each step adds momentum times the one before."""
    return sum((steps - i) * momentum**i for i in range(steps))
