"""Random numbers of several clients in one step: each draws what it would draw alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class OwnDraws(TorchDispatchMode):
    """Within it, an operation that draws random numbers for all clients of a vmapped function is carried out row by
    row, each with the random state of its client. The state of PyTorch's own generator is left alone."""

    def __init__(self, states: Sequence[Tensor], device: torch.device) -> None:
        """`states` are of generators of the device, one for each client."""
        super().__init__()
        self.states, self._device = [*states], device
        self.members: Sequence[int | None] = range(len(self.states))  # whose rows come; None: nobody's, to be dropped

    @contextmanager
    def of(self, member: int | None) -> Iterator[None]:
        """Within this, what is drawn is a client's."""
        generator = generator_of(self._device)
        before = generator.get_state()
        if member is not None:
            generator.set_state(self.states[member])
        try:
            yield
        finally:
            if member is not None:
                self.states[member] = generator.get_state()
            generator.set_state(before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        place = next(i for i, a in enumerate(args) if isinstance(a, Tensor | list | tuple))
        filled = args[place]  # a tensor, or the shape of a new one
        shape = filled.shape if isinstance(filled, Tensor) else filled
        if not len(shape) or shape[0] != len(self.members):
            raise RuntimeError(f"{func} draws random numbers that are not of one client each")
        drawn = []
        for row, member in enumerate(self.members):
            one = [*args]
            one[place] = filled[row] if isinstance(filled, Tensor) else filled[1:]
            with self.of(member):
                drawn.append(func(*one, **kwargs))
        if func._schema.is_mutable:
            return filled
        return torch.stack(drawn) if isinstance(drawn[0], Tensor) else tuple(map(torch.stack, zip(*drawn)))


class NoDraws(TorchDispatchMode):
    """Within it, whatever draws random numbers gives the same ones each time and in every row, so that two ways to make
    a step can be compared where they do not draw alike."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place, share = _dropout(func)
        if share is not None:  # of attention or a recurrent layer, or their derivatives: the same without it
            if place < len(args):
                return func(*args[:place], 0.0, *args[place + 1 :], **kwargs)
            return func(*args, **{**kwargs, share: 0.0})
        if not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        if func is torch.ops.aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        drawn = func(*args, **kwargs)
        for tensor in (drawn,) if isinstance(drawn, Tensor) else filter(torch.is_tensor, drawn):
            tensor.fill_(0.5 if tensor.is_floating_point() else 0)
        return drawn


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call draws random numbers. Attention and recurrent layers are marked as if they did, and return what
    no draw is, but do so with dropout only."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    place, share = _dropout(func)
    if share is None:
        return True
    default = func._schema.arguments[place].default_value
    return bool(kwargs.get(share, args[place] if place < len(args) else default))


def _dropout(func: Any) -> tuple[int, str | None]:
    """The argument that is the share to be dropped, if that is what the operator draws for: place and name."""
    names = [argument.name for argument in func._schema.arguments]
    return next(((names.index(n), n) for n in ("dropout_p", "dropout") if n in names), (0, None))


def generator_of(device: torch.device) -> torch.Generator:
    """The one that PyTorch draws from if it is given none."""
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.default_generator
