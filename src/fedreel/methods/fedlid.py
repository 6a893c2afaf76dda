"""FedLID (Psaltis et al. 2023): clients learn from few labels; the server goes on without any, on data of its own."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, Literal

from fedreel.config import check_ranges
from fedreel.core.abilities import Contrastable
from fedreel.core.aggregate import Average
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.weights import TensorInfo, Weights
from fedreel.errors import RecipeError


@dataclass(frozen=True)
class FedLID(Method):
    """A round: clients learn their labels; the mean of their models, by samples; the server trains the mean's backbone
    to tell views of its own samples apart (NT-Xent). The classifier is kept aside meanwhile, so it does not quite fit
    the backbone until clients have trained again. Each round notes how well clients do after training (phase trained),
    the mean (averaged) and what the server makes of it (test).

    Baselines: `server` labels is a supervised server, that of `share` of the server's labels; none is FedAvg; `when`
    once trains at the server before the first round only. Options: `local_head` leaves the classifier at its client;
    `statistics` clients takes batch norm's from the mean, not from the server's data."""

    sends: ClassVar = {**Method.sends, "trained_top1": "metric", "trained_top1_own": "metric"}
    may_lack = ("trained_top1", "trained_top1_own")
    needs = (Contrastable,)
    trains_server = True
    tunes = ("all", "norm", "lora")

    server: Literal["views", "labels", "none"] = "views"
    share: float = 1.0
    when: Literal["every-round", "once"] = "every-round"
    local_head: bool = False
    keep_projector: bool = True  # else the server's head starts afresh in every round
    statistics: Literal["server", "clients"] = "server"

    def __post_init__(self) -> None:
        check_ranges(self, "method", share=(1e-9, 1))
        if self.share < 1 and self.server != "labels":
            raise RecipeError(
                "a share is of the labels that the server learns, and here it learns none",
                where="[method] share",
                expected="1, or server = labels",
                found=f"{self.share:g} with server = {self.server}",
            )

    def comes_to(self) -> Method:
        """A server that does not train is none that trains in some way."""
        return self if self.server != "none" else FedLID(server="none", local_head=self.local_head)

    def travels(self, tensor: TensorInfo) -> bool:
        return not (self.local_head and tensor.part == "head")

    def run(self, fed: Federation) -> None:
        for round in fed.rounds():
            if self.when == "once" and round == 1:
                fed.weights = self.at_server(fed, fed.weights)
            mean = fed.average(fed.sample(), fed.weights, tested=fed.tested)
            fed.models["averaged"] = averaged = mean.weights
            if fed.tested:
                _note(fed, mean)
                fed.evaluate(averaged, phase="averaged")
            fed.weights = self.at_server(fed, averaged) if self.when == "every-round" else averaged

    def at_server(self, fed: Federation, weights: Weights) -> Weights:
        if self.server == "none":
            return weights
        trained = fed.train_server(weights, self.server, self.share, self.keep_projector)
        return trained if self.statistics == "server" else trained.with_state_of(weights)

    def card(self, fed: Federation) -> dict[str, Any]:
        """The classifier fits the mean's backbone, not the one that the server has trained on from there."""
        return {} if self.server == "none" else {"recognize": "averaged"}

    def local_training(self, client: Client) -> None:
        client.fit()
        if client.arg("tested", bool):
            scores = client.test()
            client.numbers |= {f"trained_{name}": scores[name] for name in ("top1", "top1_own") if name in scores}


def _note(fed: Federation, average: Average) -> None:
    """Mean over clients of how well each does right after its training."""
    trained = {c: {n: v for n, v in own.items() if n.startswith("trained_")} for c, own in average.numbers.items()}
    names = sorted({name for numbers in trained.values() for name in numbers})
    means = {n.removeprefix("trained_"): fmean(v[n] for v in trained.values() if n in v) for n in names}
    fed.record("trained", metrics=means, clients=trained)
