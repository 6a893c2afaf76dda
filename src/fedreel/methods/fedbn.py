"""FedBN (Li et al. 2021): FedAvg in which batch norm, scale, shift and statistics, stays with its client."""

from __future__ import annotations

from dataclasses import dataclass

from fedreel.core.weights import TensorInfo
from fedreel.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedBN(FedAvg):
    """Everything travels but batch norm."""

    tunes = ("all", "norm")

    def travels(self, tensor: TensorInfo) -> bool:
        return tensor.role not in ("norm", "statistics")
