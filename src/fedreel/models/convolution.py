"""Convolutions that are quicker on CPUs, where PyTorch's own kernels do them (without oneDNN), and give the same."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

CLIP_ROW = 6  # numbers in a row of a clip's map, from which on it pays
IMAGE_ROW, ROW_OF_MANY, MANY = 14, 4, 16  # in a row of an image's map; from so many images on NNPACK has them


class Conv3d(nn.Conv3d):
    """PyTorch copies each window before it multiplies. Where the kernel may reach beyond the border, it looks at every
    single number whether it does; in a map that has its border it copies rows."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] < CLIP_ROW or not any(self.padding) or not _by_windows(self, x):
            return super().forward(x)
        return F.conv3d(_bordered(self, x), self.weight, self.bias, self.stride)


class Conv2d(nn.Conv2d):
    """With a stride, PyTorch's kernels for images copy numbers one by one, NNPACK's for many images slower still. Those
    for clips do not: an image is a clip of one frame."""

    def forward(self, x: Tensor) -> Tensor:
        strides = self.stride[-1] > 1 and self.kernel_size[-1] > 1
        enough = x.shape[-1] >= (IMAGE_ROW if len(x) < MANY else ROW_OF_MANY)
        if not strides or not enough or not _by_windows(self, x):
            return super().forward(x)
        clip, weight = _bordered(self, x).unsqueeze(2), self.weight.unsqueeze(2)
        return F.conv3d(clip, weight, self.bias, (1, *self.stride)).squeeze(2)


class Depthwise2d(nn.Conv2d):
    """Each channel by itself, without a bias. On 64-bit ARM, PyTorch takes ten times as long for the gradients as for
    the convolution."""

    def __init__(self, channels: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(channels, channels, kernel, stride, padding, groups=channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        here = x.device.type == "cpu" and x.dtype == torch.float32 and platform.machine() in ("aarch64", "arm64")
        if not here or not torch.is_grad_enabled() or _mapped():
            return super().forward(x)
        convolved: Tensor = Depthwise.apply(x, self.weight, self.stride[0], self.padding[0])
        return convolved


class Depthwise(torch.autograd.Function):
    """The gradient of the map is a depthwise convolution itself, of a map in which strides have become zeros; that of
    the weights is taken place by place of the kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        with onednn():
            return F.conv2d(x, weight, None, stride, padding, groups=len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        of_map = _of_map(x, weight, grad, ctx.stride, ctx.padding) if ctx.needs_input_grad[0] else None
        of_weight = _of_weight(x, weight, grad, ctx.stride, ctx.padding) if ctx.needs_input_grad[1] else None
        return of_map, of_weight, None, None


def _of_map(x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int) -> Tensor:
    reach = weight.shape[-1] - 1
    if stride > 1:
        spread = grad.new_zeros(*x.shape[:2], *(side + 2 * padding - reach for side in x.shape[2:]))
        spread[..., ::stride, ::stride] = grad
        grad = spread
    with onednn():
        return F.conv2d(grad, weight.flip(2, 3), None, 1, reach - padding, groups=len(weight))


def _of_weight(x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int) -> Tensor:
    bordered = F.pad(x, [padding] * 4)
    rows, columns = (stride * (side - 1) + 1 for side in grad.shape[2:])
    side = range(weight.shape[-1])
    seen = (bordered[..., i : i + rows : stride, j : j + columns : stride] for i in side for j in side)
    return torch.stack([(part * grad).sum((0, 2, 3)) for part in seen], dim=1).view_as(weight)


@contextmanager
def onednn() -> Iterator[None]:
    """Within this, CPUs use oneDNN even where `fedreel.machine.device` has switched it off: without it, depthwise
    convolutions go channel by channel on 64-bit ARM."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def _by_windows(layer: nn.Conv2d | nn.Conv3d, x: Tensor) -> bool:
    """Whether PyTorch would copy windows of this map and multiply them as matrices: in a plain convolution on a CPU,
    not mapped over clients."""
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and {*layer.dilation} == {1}
    here = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.backends.mkldnn.enabled
    return plain and here and not _mapped()


def _mapped() -> bool:
    return torch._C._functorch.maybe_current_level() is not None


def _bordered(layer: nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    assert not isinstance(layer.padding, str)
    return F.pad(x, [zeros for zeros in reversed(layer.padding) for _ in range(2)])
