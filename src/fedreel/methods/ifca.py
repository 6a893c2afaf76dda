"""IFCA (Ghosh et al. 2020): several models; every client takes the one that fits it best, anew in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..core.aggregate import Mean
from ..core.client import Client
from ..core.federation import GLOBAL, Federation
from ..core.method import question
from ..core.weights import Weights
from .communities import name_of
from .fedavg import Averaging


@dataclass(frozen=True)
class IFCA(Averaging):
    """The server sends all m models; client k trains the one under which its training loss is least; the server
    averages what came back, model by model. A model that nobody chose stays as it is."""

    sends: ClassVar = {**Averaging.sends, "choice": "derived-number"}

    groups: int = 3
    share: Literal["all_but_head", "none"] = "none"

    def run(self, fed: Federation) -> None:
        if name_of(0) not in fed.models:
            for group in range(self.groups):
                fed.models[name_of(group)] = fed.fresh(group + 1)
        for _ in fed.rounds():
            everybody, own = Mean(), {g: Mean() for g in range(self.groups)}
            for update in fed.train(fed.sample(), self._models(fed)):
                self.add(everybody, update)
                self.add(own[int(update["choice"])], update)
                fed.memory.setdefault("members", {})[update.client] = int(update["choice"])
            fed.models[GLOBAL] = everybody.value
            body = fed.weights.layout.only(lambda t: not t.name.startswith("head."))
            for group, mean in own.items():
                new = mean.value if mean.total else fed.models[name_of(group)].clone()
                if self.share == "all_but_head":
                    new.put(fed.weights.take(body))
                fed.models[name_of(group)] = new

    def local_training(self, client: Client) -> None:
        choice = best_of(client)
        client.load(list(client.models.values())[choice])
        client.fit()
        client.numbers["choice"] = float(choice)

    def evaluate(self, fed: Federation) -> None:
        """Every client tests the model that it chose last; one that never chose is asked."""
        members: dict[str, int] = fed.memory.setdefault("members", {})
        unasked = [c for c in fed.clients if c not in members]
        for answer in fed.ask(unasked, "choose", self._models(fed)) if unasked else ():
            members[answer.client] = int(answer["choice"])
        fed.evaluate({c: fed.models[name_of(members.get(c, 0))] for c in fed.clients})

    @question(choice="derived-number")
    def choose(self, client: Client) -> dict[str, float]:
        return {"choice": float(best_of(client))}

    def _models(self, fed: Federation) -> dict[str, Weights]:
        return {name_of(g): fed.models[name_of(g)] for g in range(self.groups)}


def best_of(client: Client) -> int:
    """Which of the models that came has the least loss on this client's training data."""
    losses = [client.test_loss(weights) for weights in client.models.values()]
    return min(range(len(losses)), key=losses.__getitem__)
