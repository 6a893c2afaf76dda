"""MOON (Li et al. 2021): FedAvg with a contrast between the received model and the client's own previous one."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.client import Client
from fedreel.core.training import model_contrastive
from fedreel.methods.fedavg import FedAvg

_PREVIOUS = "previous/"


@dataclass(frozen=True)
class MOON(FedAvg):
    """Local objective: loss + mu * -log( e^{cos(z,z_glob)/t} / (e^{cos(z,z_glob)/t} + e^{cos(z,z_prev)/t}) ).
    z are the task's features: give the task a projection (256 in the paper) to contrast there. A client's first round
    has no previous model and no contrast."""

    mu: float = 1.0
    temperature: float = 0.5

    def local_training(self, client: Client) -> None:
        kept = client.state.tensors
        previous = {n.removeprefix(_PREVIOUS): t for n, t in kept.items() if n.startswith(_PREVIOUS)}
        terms = []
        if previous:
            received, before = client.frozen(client.received), client.frozen(previous)
            terms = [model_contrastive(received, before, self.mu, self.temperature)]
        client.fit(terms)
        kept.update({_PREVIOUS + name: tensor for name, tensor in client.weights().items()})
