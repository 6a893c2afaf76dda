"""What a contrast of views looks at: a backbone's vectors through a small network of their own."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from fedreel.models.backbone import Backbone

Form = Literal["two-layers", "one-layer"]


class Projected(nn.Module):
    """A backbone and a projector, told apart by the names `backbone.*` and `head.*`. Two layers with ReLU between them
    (none at the end: with one, no cosine could be negative), or, as FedLID's text has it, one layer and ReLU."""

    def __init__(self, backbone: Backbone, dim: int = 126, form: Form = "two-layers") -> None:
        super().__init__()
        width = backbone.out_channels
        self.backbone = backbone
        if form == "one-layer":
            self.head = nn.Sequential(nn.Linear(width, dim), nn.ReLU())
        else:
            self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))
