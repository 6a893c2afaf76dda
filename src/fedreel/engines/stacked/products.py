"""Convolutions of several clients, and their derivatives, as batched matrix products. Maps, gradients and weights have
clients as their first dimension, examples as the second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

How = tuple[tuple[int, ...], ...]  # stride, padding and dilation, each for every dimension of a map

MOST_BYTES = 2**30  # of what all clients' places are made of


def fits(maps: Sequence[int], weight: Sequence[int], how: How, itemsize: int) -> bool:
    """Whether there is memory for what the places of maps of such a shape are made of."""
    places, taken = math.prod(_sizes(maps[3:], weight[3:], how)), math.prod(weight[2:])
    return maps[0] * maps[1] * places * taken * itemsize <= MOST_BYTES


def laid(maps: Tensor, kernel: Sequence[int], how: How, dim: int = 1) -> tuple[Tensor, int]:
    """What each place is made of, and which dimension clients are. Of each client a matrix (taken, examples' places) if
    a weight is larger than a map: it is best not copied for every example then. Else of each example and client
    (taken, places), in this order or, with a `dim` of 0 and if that takes no copy, clients first."""
    sizes = _sizes(maps.shape[3:], kernel, how)
    if maps.shape[2] * math.prod(kernel) > math.prod(sizes):
        rows = _taken(maps, kernel, how, sizes)
        return rows.movedim(1, -len(sizes) - 1).flatten(-len(sizes) - 1).flatten(1, -2), 0
    dim = 0 if dim == 0 and copied(kernel, how) == 0 else 1
    return _taken(maps.movedim(0, dim), kernel, how, sizes).flatten(-len(sizes)).flatten(2, -2), dim


def copied(kernel: Sequence[int], how: How) -> int:
    """How often each place is copied for that: not at all where it is made of the same place alone."""
    stride, padding, _ = how
    times = math.prod(kernel)
    return 0 if times == 1 and not any(padding) and all(n == 1 for n in stride) else times


def convolved(maps: Tensor, weight: Tensor, bias: Tensor | None, how: How, dim: int) -> tuple[Tensor, int, Tensor, int]:
    """The convolution and which of its dimensions clients are, and the same of what its places are made of."""
    sizes, examples = _sizes(maps.shape[3:], weight.shape[3:], how), maps.shape[1]
    rows, dim = laid(maps, weight.shape[3:], how, dim)
    if rows.dim() == 3:
        found = _product(weight.flatten(2), rows, bias)
        return found.unflatten(2, (examples, *sizes)).movedim(2, 1), 0, rows, dim

    def each(tensor: Tensor) -> Tensor:
        own = tensor.unsqueeze(1 - dim)
        return own.expand(*(examples if i == 1 - dim else n for i, n in enumerate(own.shape))).flatten(0, 1)

    found = _product(each(weight.flatten(2)), rows.flatten(0, 1), None if bias is None else each(bias))
    return found.unflatten(2, tuple(sizes)).unflatten(0, rows.shape[:2]), dim, rows, dim


def by_weight(grad: Tensor, rows: Tensor, dim: int, kernel: Sequence[int]) -> Tensor:
    """The derivative by the weight, given what places are `laid` out of: clients, channels made, channels, kernel."""
    if rows.dim() == 3:
        found = torch.bmm(grad.transpose(1, 2).flatten(2), rows.transpose(1, 2))
    else:
        own = grad.movedim(0, dim).flatten(3).flatten(0, 1)
        each = torch.bmm(own, rows.flatten(0, 1).transpose(1, 2))
        found = each.unflatten(0, rows.shape[:2]).sum(1 - dim)
    return found.unflatten(2, (-1, *kernel))


def by_maps(grad: Tensor, weight: Tensor, size: Sequence[int], how: How) -> tuple[Tensor, int]:
    """The derivative by maps of this size, and which of its dimensions clients are: a convolution of the gradient with
    the weight turned round, zeros where a stride left places out."""
    turned = weight.flip([*range(3, weight.dim())]).transpose(1, 2)
    return convolved(_spread(grad, weight.shape[3:], size, how), turned, None, _once(how), 1)[:2]


def by_maps_fits(grad: Sequence[int], weight: Sequence[int], size: Sequence[int], how: How, itemsize: int) -> bool:
    """Whether there is memory for that."""
    margins = [d * (k - 1) for d, k in zip(how[2], weight[3:])]
    spread = [*grad[:3], *(n + m for n, m in zip(size, margins))]
    return fits(spread, [weight[0], weight[2], weight[1], *weight[3:]], _once(how), itemsize)


def _spread(grad: Tensor, kernel: Sequence[int], size: Sequence[int], how: How) -> Tensor:
    """A gradient as it goes into the derivative by maps: apart by the stride, with margins."""
    stride, padding, dilation = how
    apart = [(n - 1) * s + 1 for n, s in zip(grad.shape[3:], stride)]
    if any(s > 1 for s in stride):
        spread = grad.new_zeros(*grad.shape[:3], *apart)
        places: Any = (..., *(slice(None, None, s) for s in stride))
        spread[places] = grad
        grad = spread
    before = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding)]
    after = [n + d * (k - 1) - own - b for n, d, k, own, b in zip(size, dilation, kernel, apart, before)]
    margins = [n for pair in zip(reversed(before), reversed(after)) for n in pair]
    return F.pad(grad, margins) if any(margins) else grad


def _once(how: How) -> How:
    """Step by step, without margins."""
    dims = len(how[0])
    return (1,) * dims, (0,) * dims, how[2]


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


def _sizes(maps: Sequence[int], kernel: Sequence[int], how: How) -> list[int]:
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(maps, kernel, *how)]
