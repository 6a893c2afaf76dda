"""The two baselines of every table: all data in one place, and every client by itself."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.task import EVERYONE
from fedreel.core.weights import TensorInfo


@dataclass(frozen=True)
class Centralised(Method):
    """One model trained on the union of all clients' training data: what federation gives up.

    Needs the data in one place, so it runs only where they are. A round is `train.epochs` epochs over the union; set
    `train.keep_optimizer` to carry the optimizer's state on."""

    sees = "each"

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            for update in fed.train([EVERYONE], fed.weights):
                fed.weights = update.weights


@dataclass(frozen=True)
class LocalOnly(Method):
    """Nothing travels: each client has only its own model, trained in the rounds for which it is sampled."""

    def travels(self, tensor: TensorInfo) -> bool:
        return False

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            fed.average(fed.sample(), fed.weights)
