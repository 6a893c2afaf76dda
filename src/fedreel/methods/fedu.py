"""FedU (Zhuang et al. 2021): divergence-aware predictor update. A client that moved far keeps its own predictor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.weights import TensorInfo
from fedreel.methods.fedavg import FedAvg

SHOWN = ("divergence", "kept")  # of the round's training; whether it was with the client's own predictor


@dataclass(frozen=True)
class FedU(FedAvg):
    """Encoder (backbone) and predictor (head) are averaged. On download the client takes the global encoder; the global
    predictor only if d < mu, where d is the mean over conv weights of the L2 distance between its encoder before and
    after its own last training. The first time it takes the global predictor."""

    sends: ClassVar = {**FedAvg.sends, "divergence": "derived-number", "kept": "derived-number"}

    tunes = ("all",)  # it measures how far convolutions move

    mu: float = 0.4

    def __post_init__(self) -> None:
        check_ranges(self, "method", mu=(0, math.inf))

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            average = fed.average(fed.sample(), fed.weights, by=self.weight_by)
            fed.weights = self.step(fed, average.weights)
            fed.record("predictors", clients={c: {n: own[n] for n in SHOWN} for c, own in average.numbers.items()})

    def local_training(self, client: Client) -> None:
        state = client.state
        kept = float(state.numbers.get("divergence", -math.inf)) >= self.mu  # the first time, there is none
        if kept:
            client.load(state.group("predictor"))
        before = client.weights(_is_conv)
        client.fit()
        after = client.weights(_is_conv)
        state.numbers["divergence"] = sum(float((after[n] - before[n]).norm()) for n in before) / max(len(before), 1)
        state.keep("predictor", client.weights(_is_head))
        client.numbers |= {"divergence": float(state.numbers["divergence"]), "kept": float(kept)}


def _is_conv(tensor: TensorInfo) -> bool:
    return tensor.part != "head" and tensor.role == "parameter" and len(tensor.shape) >= 3


def _is_head(tensor: TensorInfo) -> bool:
    return tensor.part == "head"
