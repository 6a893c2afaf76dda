"""A backbone as somebody else's package brings it; its entry point is in tests/plugin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedreel.config import check_ranges
from fedreel.models.backbone import Backbone, BackboneConfig, Clips


@dataclass(frozen=True)
class StillConfig(BackboneConfig):
    """One convolution that looks at every frame alone."""

    takes: ClassVar = "clips"

    width: int = 3
    stride: int = 4

    def __post_init__(self) -> None:
        check_ranges(self, "task.backbone", width=(1, math.inf), stride=(1, math.inf))

    def network(self, sample: Clips) -> Still:
        return Still(self, sample)


class Still(Backbone):
    def __init__(self, config: StillConfig, sample: Clips) -> None:
        super().__init__()
        self.sample, self.out_channels = sample, config.width
        self.convolution = nn.Conv3d(3, config.width, (1, 4, 4), (1, config.stride, config.stride))

    def features(self, x: Tensor) -> Tensor:
        return self.convolution(x).relu()
