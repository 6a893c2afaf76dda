"""What of a backbone is trained: all of it, its norms, a product of low rank beside each layer, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from fedreel.core.frozen import freeze, release, rest
from fedreel.errors import RecipeError
from fedreel.models.lora import Lora, add_lora, merge_lora

Tune = Literal["all", "norm", "lora", "head"]
BATCH_NORMS = nn.modules.batchnorm._BatchNorm
NORMS = (BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)


def tune(network: nn.Module, how: Tune, lora: Lora, fresh: Sequence[str] = ()) -> None:
    """Freeze what is not trained, and add what is. Submodules in `fresh` are trained however the rest is tuned."""
    if how == "all":
        return
    new = [m for name in fresh for m in network.get_submodule(name).modules()]
    old = [m for m in network.modules() if not any(m is other for other in new)]
    frozen = [m for m in old if not (how == "norm" and is_norm(m))]
    if how == "norm" and len(frozen) == len(old):
        raise RecipeError(
            "this backbone has no norms to train", where="[task.backbone] tune", expected="all, lora or head"
        )
    if how == "lora":
        add_lora(network, lora, fresh)
    for module in frozen:
        freeze(module)
        if how == "head" or isinstance(module, BATCH_NORMS):
            rest(module)


def tune_all(network: nn.Module) -> None:
    """Whatever was frozen is trained from now on; LoRA becomes part of the layers that have it."""
    merge_lora(network)
    for module in network.modules():
        release(module)


def is_norm(module: nn.Module) -> bool:
    """Whether it is a layer that normalises; those of other libraries are known by their names."""
    return isinstance(module, NORMS) or type(module).__name__.endswith(("RMSNorm", "LayerNorm"))
