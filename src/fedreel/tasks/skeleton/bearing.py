"""What moving skeletons look like, whatever they do: how large they are, how they hold themselves, how they move."""

from __future__ import annotations

import torch
from torch import Tensor

STRIDES = (1, 2, 4)  # frames between which motion is measured
FAINT = 1e-6  # of a squared difference: less is as good as none


def bearing(bodies: Tensor) -> Tensor:
    """Of bodies (N, 3, T, V, M) around their centre joint: (N, D)."""
    first, others = bodies[..., 0].float(), bodies[..., 1:].float()
    spread = first.std(3).mean(2)  # of the joints, along each axis
    place = first.mean((2, 3))
    size = first.square().sum(1).mean(2).sqrt()
    found = [spread, place, size.mean(1, keepdim=True), size.std(1, correction=0, keepdim=True)]
    for stride in STRIDES:
        moved = first[:, :, stride:] - first[:, :, :-stride]
        found.append((moved.square().mean((2, 3)) + FAINT).log() if moved.shape[2] else torch.zeros_like(place))
    company = (others != 0).float().mean((1, 2, 3, 4)) if others.shape[4] else torch.zeros(len(first))
    return torch.cat([*found, company.to(first.device)[:, None]], 1)
