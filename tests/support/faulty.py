"""Faults on purpose: clients that raise or hang, and an engine that spoils answers on their way."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from fedreel.core.client import Client
from fedreel.core.job import Job
from fedreel.core.update import Failure, Update
from fedreel.core.weights import Weights
from fedreel.engines.local import LocalEngine
from fedreel.methods.fedavg import FedAvg


class Faulty:
    """Spoils answers of the engine below: (round, client) -> what happens."""

    def __init__(self, inner: LocalEngine, faults: dict[tuple[int, str], str]) -> None:
        self.inner, self.faults, self.slots = inner, faults, 1
        self.clients, self.blueprint = inner.clients, inner.blueprint
        self.extra: deque[Update] = deque()
        self.old: Update | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def next(self) -> Update | Failure | None:
        if self.extra:
            return self.extra.popleft()
        result = self.inner.next()
        if not isinstance(result, Update) or result.weights is None:
            return result
        fault = self.faults.get((result.round, result.client))
        if fault == "nan":
            result.weights["head.bias"][0] = math.nan
        elif fault == "shape":
            result.weights = Weights.of({**result.weights, "head.bias": torch.zeros(3)})
        elif fault == "norm":
            result.weights = 1e6 * result.weights
        elif fault == "stale" and self.old is not None:
            self.extra.append(result)
            return self.old
        elif fault == "duplicate":
            self.extra.append(Update(result.round, result.step, result.client, result.weights, result.numbers))
        elif fault == "loss":
            result.numbers["loss"] = math.inf
        if result.round == 1:
            self.old = result
        return result


@dataclass(frozen=True)
class Unlucky(FedAvg):
    """Clients that raise or hang in given rounds."""

    def local_training(self, client: Client) -> None:
        if (client.round, client.name) == (2, "c0"):
            raise ValueError("the camera is broken")
        if (client.round, client.name) == (3, "c1"):
            time.sleep(60)
        client.fit()


FAULTS = {
    (1, "c2"): "nan",
    (2, "c3"): "shape",
    (3, "c0"): "norm",
    (4, "c1"): "stale",
    (5, "c2"): "duplicate",
    (6, "c3"): "loss",
}

EXPECTED = {
    (1, "c2"): "not-finite",
    (2, "c0"): "error",
    (2, "c3"): "shape",
    (3, "c0"): "norm",
    (3, "c1"): "timeout",
    (4, "c3"): "stale",  # the old update that came was c3's of round 1
    (5, "c2"): "duplicate",
    (6, "c3"): "not-finite",
}


class FaultyEngine:
    """As the registry wants an engine."""

    @classmethod
    def begin(cls, job: Job) -> Faulty:
        return Faulty(LocalEngine.begin(job), FAULTS)
