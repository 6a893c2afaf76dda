"""NT-Xent (Chen et al. 2020, SimCLR): two views of a sample attract each other, all other views of the batch repel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def nt_xent(z: Tensor, temperature: float) -> Tensor:
    """The mean over rows i of z (2N, D) of -log( e^{cos(z_i,z_j)/t} / sum over k != i of e^{cos(z_i,z_k)/t} ), where j
    is the other view of i's sample: row i + N of row i, and the other way round. In float32, under autocast too: at a
    low temperature half precision would not tell cosines apart."""
    with torch.autocast(z.device.type, enabled=False):
        unit = F.normalize(z.float(), dim=1)
        likeness = unit @ unit.T / temperature
        itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
        other = torch.arange(len(z), device=z.device).roll(len(z) // 2)
        return F.cross_entropy(likeness.masked_fill(itself, -torch.inf), other)
