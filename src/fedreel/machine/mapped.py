"""What functions with a rule of their own for vmap, and for their derivatives, have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

Dim = int | None  # where clients are; None: the tensor is the same for all


class Derivative(Function):
    """A function that stands for the derivative of another; it has none itself."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError("the derivative of a stacked operation has no derivative")


def first(tensor: Tensor, dim: Dim, clients: int) -> Tensor:
    """With clients as the first dimension."""
    return tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
