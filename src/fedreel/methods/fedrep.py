"""FedRep (Collins et al. 2021): each client fits its own head to the shared body, then the body to its head."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.config import check_ranges
from fedreel.core.client import Client
from fedreel.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """Algorithm 1: head_epochs of the head alone, the body as received; then train.epochs of the body alone."""

    head_epochs: int = 1

    def __post_init__(self) -> None:
        check_ranges(self, "method", head_epochs=(1, float("inf")))

    def local_training(self, client: Client) -> None:
        client.fit(only=lambda t: t.part == "head", epochs=self.head_epochs)
        client.fit(only=lambda t: t.part != "head")
