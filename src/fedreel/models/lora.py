"""LoRA (Hu et al. 2021): beside a frozen layer W a product B A of low rank is trained, as the package `peft` has it."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedreel.config import check_ranges
from fedreel.errors import RecipeError, nearest
from fedreel.fields import Word

Layer = nn.Linear | nn.Conv2d | nn.Conv3d
A, B = "lora_A", "lora_B"  # peft's names


@dataclass(frozen=True)
class Lora:
    """The output of a layer becomes W x + alpha / rank * B (A x). A is drawn at random and B is zero, so training
    begins with the network as it was."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[Word, ...] = ()  # the layers, by the ends of their names, as in ["query", "value"]; none: all

    def __post_init__(self) -> None:
        check_ranges(self, "task.backbone.lora", rank=(1, math.inf), alpha=(0, math.inf))


def add_lora(network: nn.Module, lora: Lora, but: Sequence[str] = ()) -> list[str]:
    """Give the layers that `lora` names an A and a B each, `but` for those within the submodules of these names; the
    names of these layers."""
    layers = _targets(network, lora.targets, but)
    for layer in layers.values():
        _adapt(layer, lora)
    return [*layers]


def adapted(network: nn.Module) -> Iterator[tuple[str, Layer]]:
    """The layers that have an A and a B, by name."""
    for name, module in network.named_modules():
        if hasattr(module, A) and isinstance(module, Layer):
            yield name, module


def merged(network: nn.Module) -> dict[str, Tensor]:
    """The network's tensors with W + alpha / rank * B A in place of W, and no A and B: those of a network without
    LoRA that gives the same."""
    tensors = {name: t for name, t in network.state_dict().items() if not {A, B} & {*name.split(".")}}
    for name, layer in adapted(network):
        a, b = (getattr(layer, child).weight.detach() for child in (A, B))
        change = (b.flatten(1) @ a.flatten(1)).view(layer.weight.shape)
        weight = f"{name}.weight" if name else "weight"
        tensors[weight] = tensors[weight] + layer.lora_scale * change
    return tensors


def merge_lora(network: nn.Module) -> None:
    """Make it a network without LoRA that gives the same."""
    network.load_state_dict(merged(network), strict=False)
    for _, layer in [*adapted(network)]:
        delattr(layer, A)
        delattr(layer, B)
        for number in [n for n, hook in layer._forward_hooks.items() if hook is _add]:
            del layer._forward_hooks[number]


def peft_files(
    network: nn.Module, lora: Lora, base: str = "", cls: type[nn.Module] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The contents of adapter_config.json and adapter_model.safetensors, as `peft` writes them for this network
    without its A and B; `base` is where others find it, and `cls` of which class they make it."""
    layers = dict(adapted(network))
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "auto_mapping": {"base_model_class": cls.__name__, "parent_library": cls.__module__} if cls else None,
        "base_model_name_or_path": base or None,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": "|".join(map(re.escape, layers)),  # a text is matched as a whole, a list by the ends of names
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
    }
    tensors = {
        f"base_model.model.{name}.{child}.weight": getattr(layer, child).weight.detach().cpu().contiguous()
        for name, layer in layers.items()
        for child in (A, B)
    }
    return config, tensors


def _adapt(layer: Layer, lora: Lora) -> None:
    """A is the layer itself with `rank` outputs, so that it pads and strides as the layer does; B has one weight for
    every pair of an input and an output."""
    a: Any = copy.deepcopy(layer)
    a.weight = nn.Parameter(torch.empty_like(layer.weight[:1]).repeat_interleave(lora.rank, 0))
    a.bias = None
    nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5))
    b: Layer
    if isinstance(layer, nn.Linear):
        a.out_features = lora.rank
        b = nn.Linear(lora.rank, layer.out_features, bias=False)
    elif isinstance(layer, nn.Conv2d):
        a.out_channels = lora.rank
        b = nn.Conv2d(lora.rank, layer.out_channels, 1, bias=False)
    else:
        a.out_channels = lora.rank
        b = nn.Conv3d(lora.rank, layer.out_channels, 1, bias=False)
    b.to(layer.weight)
    nn.init.zeros_(b.weight)
    setattr(layer, A, a)
    setattr(layer, B, b)
    layer.lora_scale = lora.alpha / lora.rank  # type: ignore[assignment]
    layer.register_forward_hook(_add)


def _add(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output + layer.lora_B(layer.lora_A(*inputs)) * layer.lora_scale


def _targets(network: nn.Module, ends: tuple[str, ...], but: Sequence[str]) -> dict[str, Layer]:
    """The layers whose names are these or end with a dot and one of these; all layers that can have LoRA, if none is
    named."""
    layers = {name: module for name, module in network.named_modules() if isinstance(module, Layer)}
    named = {n: m for n, m in layers.items() if not any(n == b or n.startswith(f"{b}.") for b in but)}
    able = {name: module for name, module in named.items() if not _unfit(network, name, module)}
    if not ends:
        if not able:
            raise RecipeError(
                "this backbone has no layer that LoRA could be added to",
                where='[task.backbone] tune = "lora"',
                expected="linear layers, or convolutions in two or three dimensions",
            )
        return able
    for end in ends:
        meant = [name for name in named if name == end or name.endswith(f".{end}")]
        if not meant:
            lasts = {name.rpartition(".")[2] for name in able}
            raise RecipeError(
                f"no layer of this backbone has a name that ends with '{end}'",
                where="[task.backbone.lora] targets",
                hint=nearest(end, sorted(lasts)),
            )
        for name in meant:
            if name not in able:
                raise RecipeError(
                    f"LoRA cannot be added to the layer '{name}'",
                    where="[task.backbone.lora] targets",
                    expected="a linear layer, or a convolution of one group without dilation",
                    found=_unfit(network, name, named[name]),
                )
    return {name: layer for name, layer in able.items() if any(name == e or name.endswith(f".{e}") for e in ends)}


def _unfit(network: nn.Module, name: str, layer: Layer) -> str:
    """Why a layer cannot have LoRA; empty if it can."""
    if not isinstance(layer, nn.Linear):
        if layer.groups != 1:
            return f"a convolution of {layer.groups} groups"
        if any(d != 1 for d in layer.dilation):
            return "a convolution with dilation"
    if isinstance(network.get_submodule(name.rpartition(".")[0]), nn.MultiheadAttention):
        return "a part of torch's MultiheadAttention, which does not call it"
    return ""
