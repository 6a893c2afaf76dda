"""Skeletons as graphs: adjacency matrices split into subsets, or by distance, as graph convolutions take them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedreel.tasks.skeleton.joints import Bones, adjacency, hops

__all__ = ["Bones", "Partition", "adjacency", "hops", "scales", "subsets"]

Partition = Literal["official", "true_spatial"]


def subsets(joints: int, bones: Bones, centre: int, partition: Partition = "official") -> Tensor:
    """ST-GCN's three matrices (3, V, V); entry [s, v, w] moves joint v to joint w. Self; neighbours v that are as far
    from the centre as w or further; neighbours that are nearer. Columns of their sum add up to 1.

    ST-GCN's published code (`official`) knows only distances of one bone and takes all others as equal, so most
    neighbours fall into the second subset: 25, 40 and 8 entries for NTU's skeleton. `true_spatial` counts every bone:
    25, 24 and 24."""
    whole = adjacency(joints, bones) + np.eye(joints)
    normal = whole / whole.sum(axis=0)
    away = hops(joints, bones)[:, centre]
    if partition == "official":
        away = np.where(away <= 1, away, np.inf)
    from_, to = away[:, None], away[None, :]
    itself = np.eye(joints, dtype=bool)
    parts = (itself, ~itself & (from_ >= to), ~itself & (from_ < to))
    return torch.from_numpy(np.stack([normal * part for part in parts])).float()


def scales(joints: int, bones: Bones, count: int) -> Tensor:
    """MS-G3D's disentangled matrices (count, V, V): the k-th joins joints exactly k bones apart, each with self
    loops, symmetrically normalised."""
    distance = hops(joints, bones)
    found = []
    for k in range(count):
        near = ((distance == k) | np.eye(joints, dtype=bool)).astype(float)
        root = 1 / np.sqrt(near.sum(axis=1))
        found.append(root[:, None] * near * root[None, :])
    return torch.from_numpy(np.stack(found)).float()
