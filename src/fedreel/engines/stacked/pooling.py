"""Max pooling of several clients' maps where they lie: vmap itself copies maps and gradients to have clients first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from fedreel.machine.mapped import Derivative, Dim


def max_pool(
    maps: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """F.max_pool2d, for use under vmap."""
    if maps.dim() < 4:  # a lone map
        return F.max_pool2d(  # type: ignore[call-overload]
            maps, kernel_size, stride, padding, dilation, ceil_mode, return_indices
        )
    pooled: tuple[Tensor, Tensor] = _Pooled.apply(
        maps, *(_pair(s) for s in (kernel_size, stride or kernel_size, padding, dilation)), ceil_mode
    )
    return pooled if return_indices else pooled[0]


class _Pooled(Function):
    @staticmethod
    def forward(maps: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
        return torch.ops.aten.max_pool2d_with_indices(maps, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        maps, *ctx.how = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(maps, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
        found = None if grad is None else _Spread.apply(grad, *ctx.saved_tensors, *ctx.how)
        return found, *[None] * len(ctx.how)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Dim, ...], *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        maps, *how = inputs
        dim = _lie(maps, in_dims[0])
        found = _Pooled.apply(_each(maps, in_dims[0], dim, info.batch_size), *how)
        pooled, indices = (_apart(t, dim, info.batch_size) for t in found)
        return (pooled, indices), (dim, dim)


class _Spread(Derivative):
    """The derivative: a gradient goes where the largest number was."""

    @staticmethod
    def forward(grad: Tensor, maps: Tensor, indices: Tensor, *how: Any) -> Tensor:
        return torch.ops.aten.max_pool2d_with_indices_backward(grad, maps, *how, indices)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Dim, ...], *inputs: Any) -> tuple[Tensor, int]:
        dim = _lie(inputs[1], in_dims[1])
        three = (_each(t, own, dim, info.batch_size) for t, own in zip(inputs[:3], in_dims))
        return _apart(_Spread.apply(*three, *inputs[3:]), dim, info.batch_size), dim


def _lie(maps: Tensor, dim: Dim) -> int:
    """As which dimension clients lie in memory: after the examples (1), or before them (0)."""
    return 1 if dim is not None and maps.movedim(dim, 1).is_contiguous() else 0


def _each(maps: Tensor, dim: Dim, lie: int, clients: int) -> Tensor:
    """All maps, one after another; clients' and examples' dimensions are then one."""
    own = maps.expand(clients, *maps.shape).movedim(0, lie) if dim is None else maps.movedim(dim, lie)
    return own.flatten(0, 1)


def _apart(maps: Tensor, lie: int, clients: int) -> Tensor:
    return maps.unflatten(0, (clients, -1) if lie == 0 else (-1, clients))


def _pair(setting: int | Sequence[int]) -> tuple[int, int]:
    height, width = (setting, setting) if isinstance(setting, int) else setting
    return height, width
