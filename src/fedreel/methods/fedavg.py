"""FedAvg (McMahan et al. 2017): clients train from the global model, the server averages what they made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedreel.core.aggregate import Aggregator, Krum, Mean, Median, TrimmedMean
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.update import Update
from fedreel.core.weights import Weights


@dataclass(frozen=True)
class Averaging(Method):
    """How a round's models become one: by which weights, and by a plain or a robust mean."""

    weight_by: Literal["samples", "frames", "loss", "equal"] = "samples"
    aggregation: Literal["mean", "median", "trimmed-mean", "krum"] = "mean"
    trim: float = 0.2  # trimmed-mean: share cut off at each end
    byzantine: int = 1  # krum: how many bad clients to withstand

    def aggregator(self, fed: Federation) -> Aggregator:
        rules: dict[str, Callable[[], Aggregator]] = {
            "mean": Mean,
            "median": Median,
            "trimmed-mean": lambda: TrimmedMean(self.trim),
            "krum": lambda: Krum(self.byzantine),
        }
        rule = rules[self.aggregation]()
        if rule.needs_all and fed.round == 1:
            fed.record(
                "note",
                text=f"{self.aggregation} keeps all updates of a round in memory and counts clients as equals",
            )
        return rule

    def add(self, average: Aggregator, update: Update) -> None:
        assert update.weights is not None
        if self.weight_by == "loss" and isinstance(average, Mean):
            average.add_log(update.weights, -update.loss)  # a softmax of -loss
        elif self.weight_by in ("equal", "loss"):
            average.add(update.weights)
        else:
            average.add(update.weights, update[self.weight_by])


@dataclass(frozen=True)
class FedAvg(Averaging):
    """w <- w + server_lr * m, with m = server_momentum * m + (sum_k p_k w_k - w) and p_k = n_k / n."""

    server_lr: float = 1.0
    server_momentum: float = 0.0

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            average = self.aggregator(fed)
            for update in fed.train(fed.sample(), fed.weights):
                self.add(average, update)
            fed.weights = self.step(fed, average.value)

    def step(self, fed: Federation, average: Weights) -> Weights:
        """The server's move from the current model towards the average."""
        if self.server_lr == 1.0 and self.server_momentum == 0.0:
            return average
        delta = average - fed.weights
        if self.server_momentum:
            if "momentum" in fed.memory:
                delta = self.server_momentum * fed.memory["momentum"] + delta
            fed.memory["momentum"] = delta
        return (fed.weights + self.server_lr * delta).with_state_of(average)
