"""Convolutions of several clients, under vmap: as batched matrix products, or as one of many groups, which may miss a
GPU's tensor cores."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function

from fedreel.engines.stacked import products
from fedreel.engines.stacked.fastest import Fastest
from fedreel.engines.stacked.products import How
from fedreel.machine.mapped import Derivative, Dim, first

CHANNELS = 16  # made of a place: of fewer, laying out what each is made of takes longer than making them
DEVICES = ("cuda",)
PLAIN = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}  # and their dimensions
KEPT = 2**28  # bytes of what places are made of that are kept for the derivative by the weight
fastest = Fastest()


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
    how = (_each(s, maps.dim() - 2) for s in (stride, padding, dilation))
    found: Tensor = _Convolution.apply(maps, weight, bias, *how)[0]
    return found


class _Convolution(Function):
    """With what its places are made of, or nothing where that is made again for the derivative."""

    @staticmethod
    def forward(maps: Tensor, weight: Tensor, bias: Tensor | None, *how: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return _plain(maps, weight, bias, how), maps.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        maps, weight, _, *ctx.how = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(maps, weight, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Tensor) -> tuple[Tensor | None, ...]:
        by_maps, by_weight, by_bias = (wanted and grad is not None for wanted in ctx.needs_input_grad[:3])
        maps, weight, rows = ctx.saved_tensors
        return (
            _ByMaps.apply(grad, maps, weight, *ctx.how) if by_maps else None,
            _ByWeight.apply(grad, maps, weight, rows, *ctx.how) if by_weight else None,
            grad.sum((0, *range(2, grad.dim()))) if by_bias and grad is not None else None,
            *(None, None, None),
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Dim, ...], *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[Dim, Dim]]:
        (maps, weight, bias), how, clients = inputs[:3], inputs[3:], info.batch_size
        nothing = maps.new_empty(0)
        if in_dims[1] is None and (bias is None or in_dims[2] is None):  # the layer is the same for all
            found = _plain(maps.movedim(in_dims[0], 0).flatten(0, 1), weight, bias, how)
            return (found.unflatten(0, (clients, -1)), nothing), (0, None)
        maps, weight = (first(t, dim, clients) for t, dim in zip((maps, weight), in_dims))
        bias = None if bias is None else first(bias, in_dims[2], clients)
        if not products.fits(maps.shape, weight.shape, how, maps.element_size()):
            found = _plain(_beside(maps), weight.flatten(0, 1), None if bias is None else bias.flatten(), how, clients)
            return (found.unflatten(1, (clients, -1)), nothing), (1, None)
        found, dim, rows, side = products.convolved(maps, weight, bias, how, 0 if in_dims[0] == 0 else 1)
        keep = rows.nbytes <= KEPT and products.copied(weight.shape[3:], how)
        return (found, rows if keep else nothing), (dim, side if keep else None)


class _Derivative(Derivative):
    """Of a convolution, by its maps or its weight, given the gradient and both. Groups or products: it depends on the
    shape which are many times faster."""

    wanted: ClassVar[tuple[bool, bool, bool]]  # by maps, weight, bias

    @classmethod
    def plain(cls, grad: Tensor, maps: Tensor, weight: Tensor, how: Sequence[Sequence[int]], groups: int = 1) -> Tensor:
        """PyTorch's own."""
        stride, padding, dilation = map(list, how)
        found = torch.ops.aten.convolution_backward(
            grad, maps, weight, None, stride, padding, dilation, False, [0] * len(stride), groups, [*cls.wanted]
        )
        return next(t for t, wanted in zip(found, cls.wanted) if wanted)

    @classmethod
    def grouped(cls, grad: Tensor, maps: Tensor, weight: Tensor, how: How) -> Tensor:
        return cls.plain(_beside(grad), _beside(maps), weight.flatten(0, 1), how, len(weight))


class _ByMaps(_Derivative):
    wanted = True, False, False

    @staticmethod
    def forward(grad: Tensor, maps: Tensor, weight: Tensor, *how: tuple[int, ...]) -> Tensor:
        return _ByMaps.plain(grad, maps, weight, how)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Dim, ...], *inputs: Any) -> tuple[Tensor, int]:
        clients, weight, how = info.batch_size, inputs[2], inputs[3:]
        grad, maps = (first(t, dim, clients) for t, dim in zip(inputs[:2], in_dims))
        if in_dims[2] is None:  # the layer is the same for all
            found = _ByMaps.plain(grad.flatten(0, 1), maps.flatten(0, 1), weight, how)
            return found.unflatten(0, (clients, -1)), 0
        weight = first(weight, in_dims[2], clients)

        def grouped() -> Tensor:
            return _ByMaps.grouped(grad, maps, weight, how).unflatten(1, (clients, -1))

        def multiplied() -> Tensor:
            found, dim = products.by_maps(grad, weight, maps.shape[3:], how)
            return found.movedim(dim, 1)

        shapes = grad.shape, weight.shape, maps.shape[3:], how, grad.element_size()
        ways = [grouped, multiplied] if products.by_maps_fits(*shapes) else [grouped]
        return fastest(("maps", _form(maps, weight), how), grad.device, *ways), 1


class _ByWeight(_Derivative):
    wanted = False, True, False

    @staticmethod
    def forward(grad: Tensor, maps: Tensor, weight: Tensor, rows: Tensor, *how: tuple[int, ...]) -> Tensor:
        return _ByWeight.plain(grad, maps, weight, how)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Dim, ...], *inputs: Any) -> tuple[Tensor, int]:
        clients, rows, how = info.batch_size, inputs[3], inputs[4:]
        grad, maps, weight = (first(t, dim, clients) for t, dim in zip(inputs[:3], in_dims))
        kernel = weight.shape[3:]

        def grouped() -> Tensor:
            return _ByWeight.grouped(grad, maps, weight, how).unflatten(0, (clients, -1))

        def multiplied() -> Tensor:
            laid, dim = products.laid(maps, kernel, how) if in_dims[3] is None else (rows, in_dims[3])
            return products.by_weight(grad, laid, dim, kernel)

        fit = products.fits(maps.shape, weight.shape, how, maps.element_size())
        ways = [grouped, multiplied] if fit else [grouped]
        return fastest(("weight", _form(maps, weight), how, in_dims[3] is None), grad.device, *ways), 0


def _plain(maps: Tensor, weight: Tensor, bias: Tensor | None, how: Sequence[Sequence[int]], groups: int = 1) -> Tensor:
    stride, padding, dilation = how
    return torch.convolution(maps, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


def _beside(maps: Tensor) -> Tensor:
    """(examples, clients * channels, ...): each client's channels beside the others'."""
    return maps.transpose(0, 1).flatten(1, 2)


def _form(maps: Tensor, weight: Tensor) -> Hashable:
    """Of what the fastest way to a derivative depends: clients and examples roughly."""
    rough = tuple(n.bit_length() for n in maps.shape[:2])
    return rough, maps.shape[2:], weight.shape[1:], maps.dtype


def _each(setting: int | Sequence[int], dims: int) -> tuple[int, ...]:
    given = (setting,) if isinstance(setting, int) else tuple(setting)
    return given * dims if len(given) == 1 else given
