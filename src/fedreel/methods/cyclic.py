"""Cyclic weight transfer (Chang et al. 2018): one model goes from client to client, round after round."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.federation import Federation
from fedreel.core.method import Method


@dataclass(frozen=True)
class Cyclic(Method):
    """w <- what the last client of the chain made of it."""

    sees = "each"

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            for update in fed.train_chains([fed.sample()], fed.weights):
                last = update.weights
            fed.weights = last
