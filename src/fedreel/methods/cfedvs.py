"""CFed-VS (Wan et al. 2023): communities of clients with like-minded video, found from one number a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fedreel.core.abilities import Sequences, able
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import question
from fedreel.methods.cluster import k_means
from fedreel.methods.communities import Communities, Groups, name_of
from fedreel.methods.fedavg import WeightBy


@dataclass(frozen=True)
class CFedVS(Communities):
    """Algorithm 1. The server broadcasts a proxy video x_p; client k answers d_k, the mean DTW distance of its training
    videos to x_p; k-means on the rows of |d_k - d_q| gives the communities; each runs frame-weighted FedAvg. A newcomer
    joins the community whose mean d is nearest to its own."""

    needs = (Sequences,)

    weight_by: WeightBy = "frames"
    cost: Literal["euclidean", "cosine"] = "euclidean"
    normalize: Literal["none", "path", "length"] = "none"  # the paper's distance grows with the length of a video
    grouping: Literal["distance", "length", "random"] = "distance"  # the last two are controls

    def find(self, fed: Federation) -> Groups:
        distance = fed.memory["distance"] = self._ask(fed, list(fed.clients))
        clients, d = list(distance), np.array(list(distance.values()))
        if self.grouping == "random":
            groups = np.random.default_rng([fed.seed, 0x6C]).permutation(np.arange(len(d)) % self.groups)
        else:
            groups = k_means(np.abs(d[:, None] - d[None]), self.groups, fed.seed)
        return dict(zip(clients, map(int, groups)))

    def join(self, fed: Federation, clients: list[str]) -> Groups:
        means = community_means(fed.memory["members"], fed.memory["distance"])
        distance = self._ask(fed, clients, at_least=0.0)
        fed.memory["distance"] |= distance
        return {c: min(means, key=lambda g: abs(means[g] - d)) for c, d in distance.items()}

    def card(self, fed: Federation) -> dict[str, Any]:
        means = community_means(fed.memory["members"], fed.memory["distance"])
        return {**super().card(fed), "distances": {name_of(g): d for g, d in means.items()}}

    @question(distance="derived-number", videos="count", steps="count")
    def distance(self, client: Client, proxy: Tensor) -> dict[str, float]:
        """d_k: how far this client's training videos are from the proxy, on average."""
        from fedreel.kernels.dtw import distances_to

        videos = [v.cpu().numpy() for v in able(client.task, Sequences).sequences(client.data.train)]
        found = distances_to(videos, proxy.numpy(), cost=self.cost, normalize=self.normalize)
        return {"distance": float(np.mean(found)), "videos": len(videos), "steps": sum(map(len, videos))}

    def _ask(self, fed: Federation, clients: list[str], at_least: float | None = None) -> dict[str, float]:
        """Distances by client. How they go with the length of the videos is recorded: it may be all that they tell."""
        proxy = able(fed.task, Sequences).sequences(fed.public)[0]
        answers = list(fed.ask(clients, "distance", at_least=at_least, proxy=proxy.cpu()))
        distance = {a.client: a["distance"] for a in answers}
        length = {a.client: a["steps"] / max(a["videos"], 1.0) for a in answers}
        pair = np.array([list(distance.values()), list(length.values())])
        with_length = float(np.corrcoef(pair)[0, 1]) if len(answers) > 2 and pair.std(1).all() else None
        fed.record("distance", distance=distance, correlation_with_length=with_length)
        return length if self.grouping == "length" else distance


def community_means(members: Groups, distance: dict[str, float]) -> dict[int, float]:
    """The mean distance of each community's members."""
    return {g: float(np.mean([distance[c] for c in members if members[c] == g])) for g in sorted({*members.values()})}
