"""Convolutions of several clients as batched matrix products: as one of many groups they may miss tensor cores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

Dim = int | None  # where clients are; None: the tensor is the same for all
How = tuple[tuple[int, ...], ...]  # stride, padding and dilation, each for every dimension of a map

CHANNELS = 16  # made of a place: of fewer, laying out what each is made of takes longer than making them
MOST_BYTES = 2**30  # of what all clients' places are made of
DEVICES = ("cuda",)
PLAIN = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}  # and their dimensions


def pays(func: Any, args: Sequence[Any], settings: dict[str, Any]) -> bool:
    """Whether `convolution` is the faster way to make func(*args, **settings) under vmap: on a GPU, if enough channels
    are made of each place, and all of them from all that come in."""
    if func not in PLAIN or len(args) < 2 or not all(isinstance(t, Tensor) for t in args[:2]):
        return False
    maps, weight = args[:2]
    whole = maps.dim() == weight.dim() == PLAIN[func] + 2 and maps.shape[1] == weight.shape[1]  # no groups, no lone map
    padding = args[4] if len(args) > 4 else settings.get("padding", 0)
    return whole and maps.device.type in DEVICES and len(weight) >= CHANNELS and not isinstance(padding, str)


def convolution(
    maps: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """torch.conv1d, conv2d or conv3d, of one group, for use under vmap."""
    assert groups == 1
    if torch.is_autocast_enabled(maps.device.type):
        dtype = torch.get_autocast_dtype(maps.device.type)
        maps, weight, bias = maps.to(dtype), weight.to(dtype), bias if bias is None else bias.to(dtype)
    found: Tensor = _Convolution.apply(
        maps, weight, bias, *(_each(s, maps.dim() - 2) for s in (stride, padding, dilation))
    )
    return found


class _Convolution(Function):
    """Its derivative is PyTorch's own, of which vmap makes that of many groups: there a GPU uses its tensor cores."""

    @staticmethod
    def forward(maps: Tensor, weight: Tensor, bias: Tensor | None, *how: tuple[int, ...]) -> Tensor:
        return _plain(maps, weight, bias, how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        maps, weight, bias, *ctx.how = inputs
        ctx.bias = None if bias is None else [len(bias)]
        ctx.save_for_backward(maps, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        stride, padding, dilation = (list(s) for s in ctx.how)
        none = [0] * len(stride)
        found = torch.ops.aten.convolution_backward(
            grad, maps, weight, ctx.bias, stride, padding, dilation, False, none, 1, wanted
        )
        return (*(g if w else None for g, w in zip(found, wanted)), None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Dim, ...], *inputs: Any) -> tuple[Tensor, int]:
        (maps, weight, bias), how, clients = inputs[:3], inputs[3:], info.batch_size
        if in_dims[1] is None and (bias is None or in_dims[2] is None):  # the layer is the same for all
            found = _plain(maps.movedim(in_dims[0], 0).flatten(0, 1), weight, bias, how)
            return found.unflatten(0, (clients, -1)), 0
        maps, weight = (_first(t, dim, clients) for t, dim in zip((maps, weight), in_dims))
        bias = None if bias is None else _first(bias, in_dims[2], clients)
        sizes = _sizes(maps.shape[3:], weight.shape[3:], how)
        places, taken = math.prod(sizes), weight[0, 0].numel()
        if clients * maps.shape[1] * places * taken * maps.element_size() > MOST_BYTES:
            return _grouped(maps, weight, bias, how), 1
        if taken > places:
            return _multiplied(maps, weight, bias, how, sizes), 0
        dim = 0 if in_dims[0] == 0 and _same_places(weight, how) else 1
        return _multiplied_each(maps.movedim(0, dim), weight, bias, how, sizes, dim), dim


def _multiplied(maps: Tensor, weight: Tensor, bias: Tensor | None, how: How, sizes: Sequence[int]) -> Tensor:
    """A matrix product for each client. A weight that is larger than a map is best not copied for every example."""
    rows = _taken(maps, weight.shape[3:], how, sizes)  # clients, examples, channels, kernel, places
    rows = rows.movedim(1, -len(sizes) - 1).flatten(-len(sizes) - 1).flatten(1, -2)
    found = _product(weight.flatten(2), rows, bias)
    return found.unflatten(2, (maps.shape[1], *sizes)).movedim(2, 1)


def _multiplied_each(
    maps: Tensor, weight: Tensor, bias: Tensor | None, how: How, sizes: Sequence[int], dim: int
) -> Tensor:
    """A matrix product for each client and example, which lie in this order, or clients second (`dim` 1). So the maps
    that come of it lie as others do."""
    examples = maps.shape[1 - dim]

    def each(tensor: Tensor) -> Tensor:
        own = tensor.unsqueeze(1 - dim)
        return own.expand(*(examples if i == 1 - dim else n for i, n in enumerate(own.shape))).flatten(0, 1)

    rows = _taken(maps, weight.shape[3:], how, sizes).flatten(-len(sizes)).flatten(2, -2).flatten(0, 1)
    found = _product(each(weight.flatten(2)), rows, None if bias is None else each(bias))
    return found.unflatten(2, tuple(sizes)).unflatten(0, maps.shape[:2])


def _product(weight: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    return torch.bmm(weight, rows) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, rows)


def _taken(maps: Tensor, kernel: Sequence[int], how: How, sizes: Sequence[int]) -> Tensor:
    """What each place is made of: (..., channels, *kernel, *places), a view of maps with their margins."""
    stride, padding, dilation = how
    if any(padding):
        maps = F.pad(maps, [n for p in reversed(padding) for n in (p, p)])
    first, steps = maps.stride()[: -len(sizes)], maps.stride()[-len(sizes) :]
    inside, between = (tuple(s * n for s, n in zip(steps, each)) for each in (dilation, stride))
    shape = (*maps.shape[: -len(sizes)], *kernel, *sizes)
    return maps.as_strided(shape, (*first, *inside, *between), maps.storage_offset())


def _plain(maps: Tensor, weight: Tensor, bias: Tensor | None, how: Sequence[Sequence[int]], groups: int = 1) -> Tensor:
    stride, padding, dilation = how
    return torch.convolution(maps, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


def _grouped(maps: Tensor, weight: Tensor, bias: Tensor | None, how: How) -> Tensor:
    """As vmap itself would: with clients second."""
    together = maps.movedim(0, 1).flatten(1, 2)
    found = _plain(together, weight.flatten(0, 1), None if bias is None else bias.flatten(), how, len(weight))
    return found.unflatten(1, (len(weight), -1))


def _same_places(weight: Tensor, how: How) -> bool:
    """Whether each place is made of the same place alone: then nothing is copied to lay out what it is made of."""
    stride, padding, _ = how
    return weight[0, 0, 0].numel() == 1 and not any(padding) and all(n == 1 for n in stride)


def _sizes(maps: Sequence[int], kernel: Sequence[int], how: How) -> list[int]:
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(maps, kernel, *how)]


def _first(tensor: Tensor, dim: Dim, clients: int) -> Tensor:
    return tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _each(setting: int | Sequence[int], dims: int) -> tuple[int, ...]:
    given = (setting,) if isinstance(setting, int) else tuple(setting)
    return given * dims if len(given) == 1 else given
