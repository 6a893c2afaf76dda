"""What functions with a rule of their own for vmap, and for their derivatives, have in common."""

from __future__ import annotations

from typing import Any

import torch
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


def below(tensor: Tensor) -> Tensor:
    """The tensor under all that torch.func wraps it in: with clients as its first dimension, where it has such."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        dim = functorch.maybe_get_bdim(tensor)
        tensor = functorch.get_unwrapped(tensor)
        tensor = tensor if dim < 0 else tensor.movedim(dim, 0)
    return tensor


class ForClients(Function):
    """A function of tensors with a leading dimension of clients, `of_all`: alone it is of one, under vmap of all at
    once. What is no tensor is the same for all."""

    @staticmethod
    def of_all(*inputs: Any) -> tuple[Tensor, ...]:
        raise TypeError("a function for clients has a way to be of all of them")

    @classmethod
    def forward(cls, *inputs: Any) -> Any:
        found = cls.of_all(*(t.unsqueeze(0) if isinstance(t, Tensor) else t for t in inputs))
        return tuple(t.squeeze(0) for t in found)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Dim, ...], *inputs: Any) -> Any:
        clients = info.batch_size
        own = (first(t, dim, clients) if isinstance(t, Tensor) else t for t, dim in zip(inputs, in_dims))
        found = cls.of_all(*own)
        return found, (0,) * len(found)


class DerivativeForClients(ForClients, Derivative):
    """Both."""
