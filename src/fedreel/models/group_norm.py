"""Group norm (Wu and He 2018) in place of batch norm: an example is normed by itself, and no statistics are kept."""

from __future__ import annotations

from typing import Literal

from torch import nn

NormKind = Literal["batch", "group"]
CHANNELS = 16  # of a group, the paper's other choice beside 32 groups


def with_group_norms(network: nn.Module) -> None:
    """Put a group norm where each batch norm of a network is, as it is before it has learned anything."""
    found = [
        (parent, name, norm)
        for parent in network.modules()
        for name, norm in parent.named_children()
        if isinstance(norm, nn.modules.batchnorm._BatchNorm)
    ]
    for parent, name, norm in found:
        channels = norm.num_features
        groups = channels // CHANNELS if channels % CHANNELS == 0 else 1
        setattr(parent, name, nn.GroupNorm(groups, channels, norm.eps, norm.affine))
