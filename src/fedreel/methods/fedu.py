"""FedU (Zhuang et al. 2021): divergence-aware predictor update. A client that moved far keeps its own predictor."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.core.weights import TensorInfo
from fedreel.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedU(FedAvg):
    """Encoder (backbone) and predictor (head) are averaged. On download the client takes the global encoder; the global
    predictor only if d < mu, where d is the mean over conv weights of the L2 distance between its encoder before and
    after its own last training. The first time it takes the global predictor."""

    mu: float = 0.4

    def __post_init__(self) -> None:
        check_ranges(self, "method", mu=(0, math.inf))

    def local_training(self, client: Client) -> None:
        state = client.state
        if float(state.numbers.get("divergence", 0.0)) >= self.mu:
            client.load(state.group("predictor"))
        before = client.weights(_is_conv)
        client.fit()
        after = client.weights(_is_conv)
        state.numbers["divergence"] = sum(float((after[n] - before[n]).norm()) for n in before) / max(len(before), 1)
        state.keep("predictor", client.weights(_is_head))


def _is_conv(tensor: TensorInfo) -> bool:
    return tensor.part != "head" and tensor.role == "parameter" and len(tensor.shape) >= 3


def _is_head(tensor: TensorInfo) -> bool:
    return tensor.part == "head"
