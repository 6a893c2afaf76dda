"""What image and video networks share: convolutions with their norm, a classification head, torchvision's names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedreel.kernels.norm import Rectifier, normed
from fedreel.models.backbone import Backbone
from fedreel.models.heads import THERE, Head, Mean, as_places, make_pool
from fedreel.models.lora import merged


class Convolved(nn.Sequential):
    """A convolution and its norm, under the names 0 and 1."""

    def forward(self, x: Tensor, shortcut: Tensor | None = None, then: Rectifier | None = None) -> Tensor:
        convolution, norm = self
        return normed(norm, convolution(x), shortcut, then)


class Classifier(nn.Module):
    """A backbone and a head. Methods tell the two apart by the names, `backbone.*` and `head.*`. With a `projection`
    the head has two layers before its last, as in MOON, and features are what those give. `std` is that of the last
    layer's first weights. `kind` is how the head pools what the backbone sees; see `models.heads`."""

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        dropout: float = 0.0,
        projection: int = 0,
        std: float = 0.01,
        kind: Head = "linear",
        pool_width: int = 0,
        there: float = THERE,
    ) -> None:
        super().__init__()
        pool = make_pool(kind, backbone.out_channels, pool_width, backbone.places, there)
        width = pool.width
        self.backbone = backbone
        self.projected = projection > 0
        self.head = nn.ModuleDict({"pool": pool})
        if projection:
            layers = [nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, projection)]
            self.head["projection"] = nn.Sequential(*layers)
        self.head["dropout"] = nn.Dropout(dropout)
        fc = nn.Linear(projection or width, num_classes)
        nn.init.normal_(fc.weight, std=std)
        nn.init.zeros_(fc.bias)
        self.head["fc"] = fc

    def forward(self, x: Tensor) -> Tensor:
        return self.features_and_logits(x)[1]

    def features_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled (or projected) features, and the logits made of them."""
        return self.answered(self.seen(x))

    def seen(self, x: Tensor) -> Tensor:
        """What the head is given of an input, (N, C, T, P): all times and places or, where it would take their mean,
        the backbone's own one vector."""
        if isinstance(self.head["pool"], Mean):
            return self.backbone(x)[:, :, None, None]
        return as_places(self.backbone.features(x))

    def answered(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The head's part of it."""
        return self.classify(self.head["pool"](seen))

    def classify(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """What comes after pooling."""
        if self.projected:
            features = self.head["projection"](features)
        return features, self.head["fc"](self.head["dropout"](features))


def export_torchvision(backbone: Backbone, fc: nn.Linear | None = None) -> dict[str, Tensor]:
    """A copy of the weights under torchvision's names; with `fc` it loads into torchvision's own model."""
    named = merged(backbone)
    if fc is not None:
        named.update({f"fc.{name}": tensor for name, tensor in fc.state_dict().items()})
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in named.items()}
