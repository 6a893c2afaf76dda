"""CFed-VS (Wan et al. 2023): communities of clients with like-minded video, found from one number a client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fedreel.config import check_ranges
from fedreel.core.abilities import Sequences, able
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import question
from fedreel.errors import RecipeError
from fedreel.methods.cluster import k_means
from fedreel.methods.communities import Communities, Groups, name_of
from fedreel.methods.fedavg import WeightBy

Distances = dict[str, list[float]]  # client -> d_k, a number for each proxy


@dataclass(frozen=True)
class CFedVS(Communities):
    """Algorithm 1. The server broadcasts a proxy video x_p; client k answers d_k, the mean DTW distance of its training
    videos to x_p; k-means on the rows of |d_k - d_q| gives the communities; each runs frame-weighted FedAvg. A newcomer
    joins the community whose mean d is nearest to its own. With several proxies d_k is a vector."""

    needs = (Sequences,)

    weight_by: WeightBy = "frames"
    cost: Literal["euclidean", "cosine"] = "euclidean"
    normalize: Literal["none", "path", "length"] = "none"  # the paper's distance grows with the length of a video
    proxies: int = 1  # the paper's; each is asked for by itself
    grouping: Literal["distance", "length", "random", "topics"] = "distance"  # the others are controls

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, "method", proxies=(1, math.inf))

    def find(self, fed: Federation) -> Groups:
        distance = fed.memory["distance"] = self._ask(fed, list(fed.clients))
        clients, d = list(distance), np.array(list(distance.values()))
        if self.grouping == "random":
            groups = np.random.default_rng([fed.seed, 0x6C]).permutation(np.arange(len(d)) % self.groups)
        else:
            groups = k_means(np.linalg.norm(d[:, None] - d[None], axis=-1), self.groups, fed.seed)
        return dict(zip(clients, map(int, groups)))

    def join(self, fed: Federation, clients: list[str]) -> Groups:
        means = community_means(fed.memory["members"], fed.memory["distance"])
        wide = {len(mean) for mean in means.values()}
        distance = {c: d for c, d in self._ask(fed, clients, at_least=0.0).items() if len(d) in wide}
        fed.memory["distance"] |= distance
        return {c: min(means, key=lambda g: math.dist(means[g], d)) for c, d in distance.items()}

    def card(self, fed: Federation) -> dict[str, Any]:
        if self.grouping != "distance":
            return super().card(fed)
        means = community_means(fed.memory["members"], fed.memory["distance"])
        return {**super().card(fed), "distances": {name_of(g): d for g, d in means.items()}}

    @question(distance="derived-number", videos="count", steps="count")
    def distance(self, client: Client, proxy: Tensor) -> dict[str, float]:
        """d_k: how far this client's training videos are from the proxy, on average."""
        from fedreel.kernels.dtw import distances_to

        videos = [v.cpu().numpy() for v in able(client.task, Sequences).sequences(client.data.train)]
        found = distances_to(videos, proxy.numpy(), cost=self.cost, normalize=self.normalize)
        return {"distance": float(np.mean(found)), "videos": len(videos), "steps": sum(map(len, videos))}

    @question(topics="label-statistics")
    def topics(self, client: Client) -> dict[str, Tensor]:
        """How many of this client's training videos are about each topic: what the control `topics` groups by."""
        return {"topics": able(client.task, Sequences).topics(client.data.train)}

    def _ask(self, fed: Federation, clients: list[str], at_least: float | None = None) -> Distances:
        """What clients are grouped by. How distances go with the length of the videos is recorded: it may be all that
        they tell."""
        if self.grouping == "topics":
            counts = {a.client: a.tensor("topics").double() for a in fed.ask(clients, "topics", at_least=at_least)}
            return {c: (n / n.sum().clamp(min=1)).tolist() for c, n in counts.items()}
        distance: Distances = {}
        for number, proxy in enumerate(self._proxies(fed)):
            answers = list(fed.ask(clients, "distance", at_least=at_least, proxy=proxy.cpu()))
            for a in answers:
                distance.setdefault(a.client, []).append(a["distance"])
            distance = {c: d for c, d in distance.items() if len(d) == number + 1}  # who did not answer is asked later
        length = {a.client: [a["steps"] / max(a["videos"], 1.0)] for a in answers if a.client in distance}
        pairs = np.array([(np.mean(d), *length[c]) for c, d in distance.items()]).T
        with_length = float(np.corrcoef(pairs)[0, 1]) if len(distance) > 2 and pairs.std(1).all() else None
        fed.record("distance", distance=distance, correlation_with_length=with_length)
        return length if self.grouping == "length" else distance

    def _proxies(self, fed: Federation) -> list[Tensor]:
        videos = able(fed.task, Sequences).sequences(fed.public)
        if len(videos) < self.proxies:
            raise RecipeError(
                "there are fewer public videos than proxies",
                where="[method] proxies",
                expected=f"{len(videos)} or fewer",
                found=str(self.proxies),
                hint="lower it, or set data.public to a file with more videos",
            )
        return videos[: self.proxies]


def community_means(members: Groups, distance: Distances) -> dict[int, list[float]]:
    """The mean distances of each community's members."""
    return {
        g: np.mean([distance[c] for c in members if members[c] == g], axis=0).tolist()
        for g in sorted({*members.values()})
    }
