"""What tasks over video clips share: how frames go into a network, and what is taken from its last map."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.core.abilities import Pooling
from fedreel.data.input_scale import IMAGENET, KINETICS, InputScale
from fedreel.machine.device import channels_together
from fedreel.models.backbone import BackboneConfig

Norm = Literal["backbone", "plain", "imagenet"]


def scale_of(norm: Norm, backbone: BackboneConfig) -> InputScale:
    """What the colours of clips are brought to: that which the backbone's published weights were trained on, that of
    torchvision's video networks, or that of its image networks."""
    return {"backbone": backbone.input_scale, "plain": KINETICS, "imagenet": IMAGENET}[norm]


def network_input(clips: Tensor, scale: InputScale = KINETICS) -> Tensor:
    """Clips (N, T, H, W, 3) of bytes, or of floats up to 255, as a network takes them: (N, 3, T, H, W). On a GPU their
    channels lie together, as its convolutions want them: else they would be turned around before and after each."""
    x = clips.permute(0, 4, 1, 2, 3).float() / 255
    if {*scale.mean} == {scale.mean[0]} and {*scale.std} == {scale.std[0]}:
        x = (x - scale.mean[0]) / scale.std[0]
    else:
        values = (scale.mean, scale.std)
        mean, std = (torch.stack([torch.full((1, 1, 1), v, device=x.device) for v in three]) for three in values)
        x = (x - mean) / std
    return channels_together(x) if x.is_cuda else x


def scale_card(scale: InputScale) -> dict[str, Any]:
    """The mean and deviation that inputs are brought to, for the model's card: one of each where colours are alike."""
    return {name: three[0] if {*three} == {three[0]} else [*three] for name, three in asdict(scale).items()}


def middle(clips: Tensor, size: int) -> Tensor:
    """The middle square of clips (N, T, H, W, 3)."""
    top, left = (clips.shape[2] - size) // 2, (clips.shape[3] - size) // 2
    return clips[:, :, top : top + size, left : left + size]


def pooled(features: Tensor, pooling: Pooling) -> Tensor:
    """Vectors (N, D) of maps (N, C, T, H, W)."""
    if pooling == "mean":
        return features.flatten(2).mean(2)
    return F.max_pool3d(features, (1, min(2, features.shape[3]), min(2, features.shape[4]))).flatten(1)
