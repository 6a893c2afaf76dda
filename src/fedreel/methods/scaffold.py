"""SCAFFOLD (Karimireddy et al. 2020): control variates take the clients' drift out of their steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.terms import Gradients, Step, adjustment
from fedreel.core.weights import Weights


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """Algorithm 1, option II. Clients step along g - c_i + c; after K steps of rate eta
    c_i+ = c_i - c + (x - y_i) / (K eta). Server: x <- x + server_lr mean(y_i - x), c <- c + |S| / N mean(c_i+ - c_i).
    Meant for plain SGD: momentum makes K eta an estimate."""

    sends: ClassVar = {**Method.sends, "control": "weights"}

    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check_ranges(self, "method", server_lr=(0, float("inf")))

    def run(self, fed: Federation) -> None:
        c: Weights = fed.once("control", lambda: 0.0 * fed.weights.trained)
        for _ in fed.rounds():
            average = fed.average(fed.sample(), fed.weights, by="equal", control=c)
            y = average.weights
            fed.weights = fed.weights.toward(y, self.server_lr).with_state_of(y)
            share = average.count / len(fed.clients)
            c = fed.memory["control"] = c + share * average.tensors("control")

    def local_training(self, client: Client) -> None:
        x, c = client.received.trained, client.arg("control", Weights)
        own = client.state.weights("control", like=x)
        fitted = client.fit(adjust=corrected(c - own))
        new = own - c + (1 / (fitted.steps * fitted.lr)) * (x - client.current.trained)
        client.state.keep("control", new)
        client.tensors["control"] = new - own


@adjustment
def corrected(step: Step, grads: Gradients, drift: Weights) -> Gradients:
    """Steps go along g - c_i + c."""
    return {name: g + drift[name] if name in drift else g for name, g in grads.items()}
