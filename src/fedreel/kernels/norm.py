"""Batch norm with what follows it in a network: as PyTorch has it, or on a GPU by kernels that do it all at once."""

from __future__ import annotations

import functools
import logging
from typing import Literal

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn import functional as F

from fedreel.kernels.fusing import is_fusing
from fedreel.machine.device import under_vmap
from fedreel.machine.mapped import below

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
        and works(x.device)
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

    tracked = norm.running_mean, norm.running_var, norm.num_batches_tracked
    own = tracked if norm.track_running_stats else (None, None, None)
    found: Tensor = Normed.apply(x, shortcut, norm.weight, norm.bias, *own, norm.momentum, norm.eps, CEILING[then])[0]
    return found


def _suits(norm: nn.BatchNorm2d | nn.BatchNorm3d, x: Tensor, shortcut: Tensor | None) -> bool:
    """Whether the kernels can take it: in training, with channels together in memory, and nothing written down for the
    compiler, which makes kernels itself."""
    if not norm.training or norm.momentum is None or not norm.affine or norm.weight.dtype != torch.float32:
        return False
    if is_fusing() or x.dtype not in TYPES or x.shape[1] % 8:
        return False
    if under_vmap():
        own = below(x)
        return own.dim() == x.dim() + 1 and own.movedim(2, -1).is_contiguous()
    together = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if not x.is_contiguous(memory_format=together):
        return False
    return shortcut is None or (shortcut.dtype == x.dtype and shortcut.stride() == x.stride())


@functools.cache
def works(device: torch.device) -> bool:
    """Whether Triton's kernels do: it comes with PyTorch for GPUs, but needs a compiler on some machines."""
    try:
        with temporarily_clear_interpreter_stack():  # whatever is being mapped over clients or differentiated
            x = torch.arange(64.0, device=device).view(2, 8, 2, 2).to(memory_format=torch.channels_last)
            fused(nn.BatchNorm2d(8, device=device), x.requires_grad_(), x, "relu").sum().backward()
    except Exception as error:  # whatever a compiler may raise
        _log.warning("networks take longer than they need to: Triton's kernels do not work here (%s)", error)
        return False
    return True
