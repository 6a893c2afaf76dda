"""FedPer (Arivazhagan et al. 2019): FedAvg of backbones; every client keeps a head of its own."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.weights import TensorInfo
from fedreel.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedPer(FedAvg):
    """Everything travels but the head."""

    def travels(self, tensor: TensorInfo) -> bool:
        return tensor.part != "head"
