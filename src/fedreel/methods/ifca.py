"""IFCA (Ghosh et al. 2020): several models; every client takes the one that fits it best, anew in every round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedreel.config import check_ranges
from fedreel.core.aggregate import Average
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method, question
from fedreel.core.update import Answer, Update
from fedreel.core.weights import Weights
from fedreel.methods.communities import name_of, renew
from fedreel.methods.fedavg import FedAvg, WeightBy


@dataclass(frozen=True)
class IFCA(Method):
    """The server sends all m models; client k trains the one under which its training loss is least; the server
    averages what came back, model by model. A model that nobody chose stays as it is."""

    sends: ClassVar = {**Method.sends, "choice": "derived-number"}
    sees = "each"

    weight_by: WeightBy = "samples"
    groups: int = 3
    share: Literal["all_but_head", "none"] = "none"

    def __post_init__(self) -> None:
        check_ranges(self, "method", groups=(1, math.inf))

    def comes_to(self) -> Method:
        """One model is what everybody takes."""
        return self if self.groups > 1 else FedAvg(self.weight_by)

    def run(self, fed: Federation) -> None:
        if name_of(0) not in fed.models:
            for group in range(self.groups):
                fed.models[name_of(group)] = fed.fresh(group + 1)
        for _ in fed.rounds():
            everybody = Average(self.weight_by, fed.mean)
            own: dict[int, Average] = {}
            for update in fed.train(fed.sample(), self._models(fed)):
                choice = self._choice(update)
                everybody.add(update)
                own.setdefault(choice, Average(self.weight_by, fed.mean)).add(update)
                fed.memory.setdefault("members", {})[update.client] = choice
            renew(fed, self.groups, self.share, everybody.weights, {g: mean.weights for g, mean in own.items()})

    def local_training(self, client: Client) -> None:
        choice = best_of(client)
        client.load(list(client.models.values())[choice])
        client.fit()
        client.numbers["choice"] = float(choice)

    def evaluate(self, fed: Federation) -> None:
        """Every client tests the model that it chose last; one that never chose is asked."""
        members: dict[str, int] = fed.memory.setdefault("members", {})
        unasked = [c for c in fed.clients if c not in members]
        for answer in fed.ask(unasked, "choose", self._models(fed), at_least=0.0) if unasked else ():
            members[answer.client] = self._choice(answer)
        fed.evaluate({c: fed.models[name_of(members.get(c, 0))] for c in fed.clients})

    @question(choice="derived-number")
    def choose(self, client: Client) -> dict[str, float]:
        return {"choice": float(best_of(client))}

    def card(self, fed: Federation) -> dict[str, Any]:
        return {"communities": {c: name_of(g) for c, g in fed.memory.get("members", {}).items()}}

    def _choice(self, update: Update | Answer) -> int:
        """Which model a client chose; one that names none of ours counts for the first."""
        return int(update["choice"]) if 0 <= update["choice"] < self.groups else 0

    def _models(self, fed: Federation) -> dict[str, Weights]:
        return {name_of(g): fed.models[name_of(g)] for g in range(self.groups)}


def best_of(client: Client) -> int:
    """Which of the models that came has the least loss on this client's training data."""
    losses = [client.test_loss(weights) for weights in client.models.values()]
    return min(range(len(losses)), key=losses.__getitem__)
