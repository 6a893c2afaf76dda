"""What of a model is not trained: tensors that stay as they were built, and modules that stay in eval mode."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

_FROZEN, _RESTING = "_frozen_tensors", "_resting"  # marks on modules; a copy of a module has them too


def freeze(module: nn.Module) -> None:
    """The module's own tensors, not those of modules within it, stay as they are: they do not travel, are in no
    checkpoint and no client's state, and take no gradients."""
    setattr(module, _FROZEN, True)
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad_(False)


def release(module: nn.Module) -> None:
    """The module's own tensors are trained, and it rests no more."""
    setattr(module, _FROZEN, False)
    setattr(module, _RESTING, False)
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad_(parameter.is_floating_point())


def is_frozen(module: nn.Module) -> bool:
    return getattr(module, _FROZEN, False)


def rest(module: nn.Module) -> None:
    """The module is in eval mode whatever mode its backbone is set to: a batch norm goes by its running statistics and
    does not change them."""
    setattr(module, _RESTING, True)


def is_resting(module: nn.Module) -> bool:
    return getattr(module, _RESTING, False)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Equal where names, types, shapes and every bit of the tensors are, in whatever order; empty of none."""
    if not tensors:
        return ""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
