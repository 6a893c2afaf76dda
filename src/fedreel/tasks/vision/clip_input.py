"""What tasks over video clips share: how frames go into a network, and what is taken from its last map."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Norm = Literal["plain", "imagenet"]
MEAN, STD = 0.45, 0.225  # `plain`: of Kinetics, as torchvision's video models use them (rounded to one value)
CHANNELS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # `imagenet`: of the red, green and blue of its images


def network_input(clips: Tensor, norm: Norm = "plain") -> Tensor:
    """Clips (N, T, H, W, 3) of bytes, or of floats up to 255, as a network takes them: (N, 3, T, H, W). On a GPU their
    channels lie together, as its convolutions want them: else they would be turned around before and after each."""
    x = clips.permute(0, 4, 1, 2, 3).float() / 255
    if norm == "plain":
        x = (x - MEAN) / STD
    else:
        mean, std = (torch.stack([torch.full((1, 1, 1), v, device=x.device) for v in values]) for values in CHANNELS)
        x = (x - mean) / std
    return x.contiguous(memory_format=torch.channels_last_3d) if x.is_cuda else x


def norm_card(norm: Norm) -> dict[str, Any]:
    """The mean and deviation that inputs are brought to, for the model's card."""
    mean, std = (MEAN, STD) if norm == "plain" else map(list, CHANNELS)
    return {"mean": mean, "std": std}


def middle(clips: Tensor, size: int) -> Tensor:
    """The middle square of clips (N, T, H, W, 3)."""
    top, left = (clips.shape[2] - size) // 2, (clips.shape[3] - size) // 2
    return clips[:, :, top : top + size, left : left + size]


def pooled(features: Tensor, pooling: Literal["mean", "grid"]) -> Tensor:
    """Vectors (N, D) of maps (N, C, T, H, W)."""
    if pooling == "mean":
        return features.flatten(2).mean(2)
    return F.max_pool3d(features, (1, min(2, features.shape[3]), min(2, features.shape[4]))).flatten(1)
