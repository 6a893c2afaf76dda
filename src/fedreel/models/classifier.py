"""What image and video networks share: convolutions with their norm, a classification head, torchvision's names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedreel.kernels.norm import Rectifier, normed
from fedreel.models.backbone import Backbone
from fedreel.models.lora import merged


class Convolved(nn.Sequential):
    """A convolution and its batch norm, under the names 0 and 1."""

    def forward(self, x: Tensor, shortcut: Tensor | None = None, then: Rectifier | None = None) -> Tensor:
        convolution, norm = self
        assert isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d)
        return normed(norm, convolution(x), shortcut, then)


class Classifier(nn.Module):
    """A backbone and a head. Methods tell the two apart by the names, `backbone.*` and `head.*`. With a `projection`
    the head has two layers before its last, as in MOON, and features are what those give. `std` is that of the last
    layer's first weights."""

    def __init__(
        self, backbone: Backbone, num_classes: int, dropout: float = 0.0, projection: int = 0, std: float = 0.01
    ) -> None:
        super().__init__()
        width = backbone.out_channels
        self.backbone = backbone
        self.projected = projection > 0
        self.head = nn.ModuleDict()
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
        return self.classify(self.backbone(x))

    def classify(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The head's part of it."""
        if self.projected:
            features = self.head["projection"](features)
        return features, self.head["fc"](self.head["dropout"](features))


def export_torchvision(backbone: Backbone, fc: nn.Linear | None = None) -> dict[str, Tensor]:
    """A copy of the weights under torchvision's names; with `fc` it loads into torchvision's own model."""
    named = merged(backbone)
    if fc is not None:
        named.update({f"fc.{name}": tensor for name, tensor in fc.state_dict().items()})
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in named.items()}
