"""Sums of shifted products: a kernel for each channel along positions, as one operation forwards and backwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedreel.machine.device import under_vmap


def shifted_sum(padded: Tensor, kernel: Tensor) -> Tensor:
    """For (..., N + K - 1, width) and a kernel (K, width): (..., N, width), sum_k padded[..., n + k, :] kernel[k]. On
    CPUs products are added up in place; step by step, autograd writes each of them and its gradient anew."""
    if padded.is_cuda or under_vmap():
        y: Tensor = sum(shift * weight for shift, weight in zip(_shifts(padded, len(kernel)), kernel))
        return y
    added: Tensor = _ShiftedSum.apply(padded, kernel)
    return added


class _ShiftedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(padded, kernel)
        first, *others = _shifts(padded, len(kernel))
        y = first * kernel[0]
        for shift, weight in zip(others, kernel[1:]):
            y.addcmul_(shift, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, Tensor | None]:
        padded, kernel = ctx.saved_tensors
        of_padded = of_kernel = None
        if ctx.needs_input_grad[0]:
            of_padded = torch.zeros_like(padded)
            for place, weight in zip(_shifts(of_padded, len(kernel)), kernel):
                place.addcmul_(given, weight)
        if ctx.needs_input_grad[1]:
            product, rows = torch.empty_like(given), tuple(range(given.dim() - 1))
            shifts = _shifts(padded, len(kernel))
            of_kernel = torch.stack([torch.mul(shift, given, out=product).sum(rows) for shift in shifts])
        return of_padded, of_kernel


def _shifts(padded: Tensor, kernel: int) -> list[Tensor]:
    """The K views of N positions in a row."""
    n = padded.shape[-2] - kernel + 1
    return [padded[..., k : k + n, :] for k in range(kernel)]
