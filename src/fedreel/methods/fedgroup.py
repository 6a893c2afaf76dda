"""FedGroup (Duan et al. 2021): communities found from the directions in which clients pull the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedreel.core.aggregate import Mean
from fedreel.core.federation import Federation
from fedreel.core.weights import Weights
from fedreel.methods.cluster import k_means
from fedreel.methods.communities import Communities, Groups, name_of


@dataclass(frozen=True)
class FedGroup(Communities):
    """Cold start: all clients train once from the global model; the m leading directions of their updates (SVD) and the
    cosines of each update with them (EDC) are clustered by k-means. A community starts from the mean of its members'
    models. A newcomer trains once from the same start and joins the community whose way from there is most like its
    own."""

    share: Literal["all_but_head", "none"] = "none"

    def find(self, fed: Federation) -> Groups:
        trained = {u.client: u.weights for u in fed.train(fed.clients, fed.weights)}
        updates = torch.stack([flat(w - fed.weights) for w in trained.values()])
        groups = k_means(decomposed_cosines(updates, self.groups), self.groups, fed.seed)
        members = dict(zip(trained, map(int, groups)))
        for group in range(self.groups):
            mean = Mean()
            for client, weights in trained.items():
                if members[client] == group:
                    mean.add(weights)
            if mean.total:
                fed.models[name_of(group)] = mean.value
        fed.memory["before"] = fed.weights
        return members

    def join(self, fed: Federation, clients: list[str]) -> Groups:
        start: Weights = fed.memory["before"]
        there = {g: flat(fed.models[name_of(g)] - start) for g in sorted({*fed.memory["members"].values()})}
        pulls = {u.client: flat(u.weights - start) for u in fed.train(clients, start, at_least=0.0)}
        return {c: max(there, key=lambda g: float(cosines(pull[None], there[g][None]))) for c, pull in pulls.items()}


def flat(weights: Weights) -> Tensor:
    """The floating-point parameters as one vector."""
    part = weights.trained
    return torch.cat([tensor.flatten().double() for tensor in part.values()])


def decomposed_cosines(updates: Tensor, m: int) -> np.ndarray:
    """EDC: the cosine of every update (row) with each of the m leading directions of all of them."""
    directions = torch.linalg.svd(updates, full_matrices=False).Vh[: min(m, len(updates))]
    return cosines(updates, directions).cpu().numpy()


def cosines(a: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.normalize(a, dim=1) @ torch.nn.functional.normalize(b, dim=1).T
