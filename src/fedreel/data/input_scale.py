"""The scale of colours that an image network was trained on, and so wants to be given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InputScale:
    """Red, green and blue from 0 to 1 become (x - mean) / std."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = InputScale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # torchvision's networks: ImageNet's own statistics
KINETICS = InputScale((0.45,) * 3, (0.225,) * 3)  # torchvision's video networks, rounded to one value for all colours
LITE = InputScale((127 / 255,) * 3, (128 / 255,) * 3)  # EfficientNet-Lite: bytes become (x - 127) / 128
