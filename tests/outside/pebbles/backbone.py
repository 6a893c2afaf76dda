"""The backbone: one layer over points, a kind of input that fedreel itself does not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from fedreel.models.backbone import Backbone, BackboneConfig


@dataclass(frozen=True)
class DenseConfig(BackboneConfig):
    """So many units."""

    takes: ClassVar = "points"

    units: int = 4

    def network(self, sample: Any) -> Dense:
        return Dense(self.units)


class Dense(Backbone):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.out_channels = units
        self.layer = nn.Linear(2, units)

    def features(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh()[:, :, None]
