"""FedDyn (Acar et al. 2021): a dynamic regulariser makes the clients' optima agree with the global one."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.terms import Gradients, Step, adjustment
from fedreel.core.weights import Weights
from fedreel.methods.fedprox import proximal


@dataclass(frozen=True)
class FedDyn(Method):
    """Client k minimises L_k(w) - <g_k, w> + alpha/2 ||w - w^t||^2, then g_k <- g_k - alpha (w_k - w^t).
    Server, with N clients of which those in P took part: h <- h - alpha / N sum_P (w_k - w^t),
    w <- mean_P(w_k) - h / alpha."""

    alpha: float = 0.01

    def __post_init__(self) -> None:
        check_ranges(self, "method", alpha=(1e-9, float("inf")))

    def run(self, fed: Federation) -> None:
        h: Weights = fed.once("h", lambda: 0.0 * fed.weights)
        for _ in fed.rounds():
            average = fed.average(fed.sample(), fed.weights, by="equal")
            mean, share = average.weights, average.count / len(fed.clients)
            h = fed.memory["h"] = h - self.alpha * share * (mean - fed.weights)
            fed.weights = (mean - (1 / self.alpha) * h).with_state_of(mean)

    def local_training(self, client: Client) -> None:
        start = client.received.trained
        g = client.state.weights("g", like=start)
        client.fit([proximal(client.received, self.alpha)], adjust=less(g))
        client.state.keep("g", g - self.alpha * (client.current.trained - start))


@adjustment
def less(step: Step, grads: Gradients, g: Weights) -> Gradients:
    """The gradient of -<g, w> is -g."""
    return {name: grad - g[name] if name in g else grad for name, grad in grads.items()}
