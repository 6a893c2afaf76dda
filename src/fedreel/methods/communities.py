"""Several global models, one for each community of clients: what CFed-VS and its kin have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedreel.config import check_ranges
from fedreel.core.aggregate import Average
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.server import GLOBAL
from fedreel.core.weights import Weights
from fedreel.methods.fedavg import FedAvg, WeightBy

Groups = dict[str, int]  # client -> community


def name_of(group: int) -> str:
    return f"community-{group}"


@dataclass(frozen=True)
class Communities(Method):
    """Clients are grouped once; each community then runs its own FedAvg. With `share = "all_but_head"` the body is
    averaged over all who took part and only the head is a community's own (IFCA's remark for ambiguous clusters).
    The model `global` is the average over everybody, for those who belong to no community."""

    sees = "each"

    weight_by: WeightBy = "samples"
    groups: int = 3
    share: Literal["all_but_head", "none"] = "all_but_head"

    def __post_init__(self) -> None:
        check_ranges(self, "method", groups=(1, math.inf))

    def comes_to(self) -> Method:
        """One community is everybody, whatever it takes to find it."""
        return self if self.groups > 1 else FedAvg(self.weight_by)

    @abstractmethod
    def find(self, fed: Federation) -> Groups:
        """Group the clients. Those who did not answer are left out and found later by `join`."""

    @abstractmethod
    def join(self, fed: Federation, clients: list[str]) -> Groups:
        """Find communities for clients that came later, without training anybody else again."""

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            members = self.members(fed)
            chosen = [c for g in range(self.groups) for c in self._sampled(fed, members, g)]
            everybody = Average(self.weight_by, fed.mean)
            own: dict[int, Average] = {}
            for update in fed.train_own({c: fed.models[name_of(members[c])] for c in chosen}):
                everybody.add(update)
                own.setdefault(members[update.client], Average(self.weight_by, fed.mean)).add(update)
            renew(fed, self.groups, self.share, everybody.weights, {g: mean.weights for g, mean in own.items()})

    def members(self, fed: Federation) -> Groups:
        """Who belongs where, as far as it is known; newcomers are asked."""
        known: Groups = fed.once("members", lambda: self._first(fed))
        late = [c for c in fed.clients if c not in known]
        if late:
            known |= self.join(fed, late)
        return known

    def evaluate(self, fed: Federation) -> None:
        """Every client tests the model of its community."""
        members: Groups = fed.memory.get("members", {})
        fed.evaluate({c: fed.models[name_of(members[c])] if c in members else fed.weights for c in fed.clients})

    def card(self, fed: Federation) -> dict[str, Any]:
        return {"communities": {c: name_of(g) for c, g in fed.memory.get("members", {}).items()}}

    def _first(self, fed: Federation) -> Groups:
        groups = self.find(fed)
        for group in range(self.groups):
            fed.models.setdefault(name_of(group), fed.weights)
        fed.record("communities", members={c: name_of(g) for c, g in groups.items()})
        return groups

    def _sampled(self, fed: Federation, members: Groups, group: int) -> list[str]:
        mine = [c for c in fed.clients if members.get(c) == group]
        fraction = fed.config.clients / len(fed.clients) if fed.config.clients else fed.config.fraction
        return fed.sample(among=mine, fraction=fraction) if mine else []


def renew(fed: Federation, groups: int, share: str, everybody: Weights, own: Mapping[int, Weights]) -> None:
    """Put the round's averages in place: each community's own (or, where nobody took part, what it had), and with a
    shared body that of everybody. The global model is the average over all."""
    body = everybody.layout.only(lambda t: t.part != "head")
    for group in range(groups):
        new = own.get(group, fed.models[name_of(group)])
        if share == "all_but_head":
            new = new.clone()
            new.put(everybody.take(body))
        fed.models[name_of(group)] = new
    fed.models[GLOBAL] = everybody
