"""Dropout of several clients whose derivative is one kernel: vmap makes it of three."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from fedreel.machine.mapped import Derivative, Dim, first


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """F.dropout, for use under vmap where clients draw differently."""
    if not training or inplace or not 0 < p < 1:
        return F.dropout(input, p, training, inplace)
    found: Tensor = _Dropped.apply(input, p)[0]
    return found


class _Dropped(Function):
    """What is left, and which that is."""

    @staticmethod
    def forward(input: Tensor, p: float) -> tuple[Tensor, Tensor]:
        return torch.native_dropout(input, p, True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        ctx.scale = 1 / (1 - inputs[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Tensor) -> tuple[Tensor | None, None]:
        return None if grad is None else _Derivative.apply(grad, *ctx.saved_tensors, ctx.scale), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Dim, None], input: Tensor, p: float) -> tuple[tuple[Tensor, Tensor], Any]:
        return _Dropped.apply(first(input, in_dims[0], info.batch_size), p), (0, 0)


class _Derivative(Derivative):
    @staticmethod
    def forward(grad: Tensor, left: Tensor, scale: float) -> Tensor:
        found: Tensor = torch.ops.aten.native_dropout_backward(grad, left, scale)
        return found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Dim, ...], grad: Tensor, left: Tensor, scale: float) -> tuple[Tensor, int]:
        rows = (first(t, dim, info.batch_size) for t, dim in zip((grad, left), in_dims))
        return _Derivative.apply(*rows, scale), 0
