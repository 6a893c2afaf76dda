"""The method: the server goes only a part of the way to the clients' mean."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.federation import Federation
from fedreel.core.method import Method


@dataclass(frozen=True)
class Halfway(Method):
    """Move by `step` of the way."""

    step: float = 0.5

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            mean = fed.average(fed.sample(), fed.weights, by="samples").weights
            fed.weights = fed.weights + self.step * (mean - fed.weights)
