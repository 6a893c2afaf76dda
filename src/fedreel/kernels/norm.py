"""Batch norm with what follows it in a network: as PyTorch has it, or on a GPU by kernels that do it all at once."""

from __future__ import annotations

import functools
import logging
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.kernels.fusing import is_fusing
from fedreel.machine.device import under_vmap

Rectifier = Literal["relu", "relu6"]
CEILING = {None: None, "relu": 0.0, "relu6": 6.0}  # as the kernels know them: 0 is none
DEVICES = ("cuda",)
TYPES = (torch.float32, torch.bfloat16, torch.float16)  # of maps; sums are taken in the first
_log = logging.getLogger(__name__)


def normed(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None, then: Rectifier | None = None) -> Tensor:
    """then(norm(x) + shortcut); a batch norm in training on a GPU by kernels that do all of it at once."""
    if (
        isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d)
        and x.device.type in DEVICES
        and _suits(norm, x, shortcut)
        and _works(x.device)
    ):
        return fused(norm, x, shortcut, then)
    x = norm(x)
    if shortcut is not None:
        x = x + shortcut
    if then is None:
        return x
    return F.relu(x, inplace=True) if then == "relu" else F.relu6(x, inplace=True)


def fused(
    norm: nn.BatchNorm2d | nn.BatchNorm3d, x: Tensor, shortcut: Tensor | None = None, then: Rectifier | None = None
) -> Tensor:
    """The same by Triton's kernels."""
    from fedreel.kernels.norm_triton import Normed  # optional, and slow to import

    running = (norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum)
    keep = running if norm.track_running_stats else None
    return Normed.apply(x, shortcut, norm.weight, norm.bias, keep, norm.eps, CEILING[then])


def _suits(norm: nn.BatchNorm2d | nn.BatchNorm3d, x: Tensor, shortcut: Tensor | None) -> bool:
    """Whether the kernels can take it: in training, with channels together in memory, nothing mapped over clients or
    written down for the compiler, which makes kernels itself."""
    if not norm.training or norm.momentum is None or not norm.affine or norm.weight.dtype != torch.float32:
        return False
    if under_vmap() or is_fusing():
        return False
    together = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if x.dtype not in TYPES or x.shape[1] % 8 or not x.is_contiguous(memory_format=together):
        return False
    return shortcut is None or (shortcut.dtype == x.dtype and shortcut.stride() == x.stride())


@functools.cache
def _works(device: torch.device) -> bool:
    """Tried once: Triton comes with PyTorch for GPUs, but needs a compiler on some machines."""
    try:
        x = torch.randn(2, 8, 2, 2, device=device).to(memory_format=torch.channels_last).requires_grad_()
        torch.autograd.grad(fused(nn.BatchNorm2d(8, device=device), x, x, "relu").sum(), x)
    except Exception as error:  # whatever a compiler may raise
        _log.warning("batch norms take longer than they need to: Triton's kernels do not work here (%s)", error)
        return False
    return True
