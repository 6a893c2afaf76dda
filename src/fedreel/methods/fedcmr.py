"""FedCMR-style (after Zong et al. 2021): encoders stay home, the common subspace is averaged by data and categories."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.aggregate import Mean
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method, question
from fedreel.core.task import temporal
from fedreel.core.weights import TensorInfo

ENCODERS = ("backbone.project.", "backbone.positions", "backbone.video.", "backbone.sentence.")


@dataclass(frozen=True)
class FedCMR(Method):
    """w <- sum_k a_k w_k over the layers that join both modalities; a_k goes with (n_k / n) (c_k / c), n_k the samples
    and c_k the categories of client k. Written from the abstract: the paper's own code was not at hand."""

    def travels(self, tensor: TensorInfo) -> bool:
        return not tensor.name.startswith(ENCODERS)

    def run(self, fed: Federation) -> None:
        held = fed.once("categories", lambda: {a.client: a["categories"] for a in fed.ask(fed.clients, "categories")})
        for _ in fed.rounds():
            average = Mean()
            for update in fed.train([c for c in fed.sample() if c in held], fed.weights):
                assert update.weights is not None
                average.add(update.weights, update.samples * held[update.client])
            fed.weights = average.value

    @question(categories="label-statistics")
    def categories(self, client: Client) -> dict[str, float]:
        """How many categories this client's training data have."""
        return {"categories": float(temporal(client.task).categories(client.data.train))}
