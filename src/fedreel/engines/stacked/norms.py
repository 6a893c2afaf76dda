"""Norms of several clients in fewer kernels than vmap's own rules take: batch norm as one of many channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from fedreel.machine.mapped import Derivative, Dim


def batch_norm(
    maps: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.batch_norm, for use under vmap."""
    if training:
        F._verify_batch_size(list(maps.size()))  # type: ignore[attr-defined]
    found: Tensor = _Norm.apply(maps, weight, bias, running_mean, running_var, training, momentum, eps)[0]
    return found


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """F.layer_norm, for use under vmap: what scale and shift apply to is kept, not made anew for their derivatives."""
    plain = torch.layer_norm(input, normalized_shape, None, None, eps)
    if weight is None or bias is None:
        return plain if weight is None else plain * weight
    found: Tensor = _Scaled.apply(plain, weight, bias)
    return found


class _Scaled(Function):
    """plain * weight + bias. The derivative of torch.addcmul, which it is made by, would multiply by one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(plain: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.addcmul(bias, plain, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        plain, weight = ctx.saved_tensors
        return grad * weight, (grad * plain).sum_to_size(weight.shape), grad.sum_to_size(weight.shape)


class _Norm(Function):
    """Normalised maps, and what their derivative needs. Running statistics are changed in place."""

    @staticmethod
    def forward(
        maps: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return torch.native_batch_norm(maps, weight, bias, mean, var, training, momentum, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        maps, weight, _, mean, var, ctx.training, _, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(maps, weight, *((None, None) if ctx.training else (mean, var)), *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 8
        maps, weight, *others = ctx.saved_tensors
        found = _Backward.apply(grad, maps, weight, *others, ctx.training, ctx.eps)
        wanted = [g if needed else None for g, needed in zip(found, ctx.needs_input_grad)]
        return (*wanted, None, None, None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Dim, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, int, int]]:
        clients = info.batch_size
        maps, weight, bias, mean, var, *settings = inputs
        if settings[0] and mean is not None and None in in_dims[3:5]:
            raise RuntimeError("running statistics of a batch norm are the same tensors for all clients")
        own = [None if t is None else _together(t, dim, clients) for t, dim in zip((mean, var), in_dims[3:5])]
        pairs = zip((weight, bias), in_dims[1:3])
        flat = [None if t is None else _together(t, dim, clients) for t, dim in pairs]
        found = _Norm.apply(_beside(maps, in_dims[0], clients), *flat, *own, *settings)
        if settings[0] and mean is not None:
            for given, dim, now in zip((mean, var), in_dims[3:5], own):
                _put_back(given, dim, now)
        return _apart(found, clients), (1, 0, 0)


class _Backward(Derivative):
    """Derivatives by maps, weight and bias."""

    @staticmethod
    def forward(
        grad: Tensor,
        maps: Tensor,
        weight: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        batch_mean: Tensor,
        batch_scale: Tensor,
        training: bool,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
            grad, maps, weight, mean, var, batch_mean, batch_scale, training, eps, [True, True, True]
        )
        return found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Dim, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, int, int]]:
        clients = info.batch_size
        grad, maps = (_beside(t, dim, clients) for t, dim in zip(inputs[:2], in_dims))
        flat = [None if t is None else _together(t, dim, clients) for t, dim in zip(inputs[2:7], in_dims[2:7])]
        return _apart(_Backward.apply(grad, maps, *flat, *inputs[7:]), clients), (1, 0, 0)


def _beside(maps: Tensor, dim: Dim, clients: int) -> Tensor:
    """(N, clients * C, ...): each client's channels beside the others'."""
    stacked = maps.unsqueeze(1).expand(-1, clients, *maps.shape[1:]) if dim is None else maps.movedim(dim, 1)
    return stacked.flatten(1, 2)


def _together(channels: Tensor, dim: Dim, clients: int) -> Tensor:
    """(clients * C,); the same memory where that can be."""
    return (channels.expand(clients, -1) if dim is None else channels.movedim(dim, 0)).flatten()


def _put_back(given: Tensor, dim: Dim, now: Tensor | None) -> None:
    if dim is not None and now is not None and given.data_ptr() != now.data_ptr():
        rows = given.movedim(dim, 0)
        rows.copy_(now.view_as(rows))


def _apart(found: tuple[Tensor, ...], clients: int) -> tuple[Tensor, ...]:
    """Maps with clients as dimension 1, and numbers for each channel with clients first."""
    maps, *channels = found
    return maps.unflatten(1, (clients, -1)), *(c.view(clients, -1) for c in channels)
