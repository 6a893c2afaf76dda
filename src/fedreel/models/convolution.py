"""Convolutions that are quicker on CPUs, where PyTorch's own kernels do them (without oneDNN), and give the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn
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


def _by_windows(layer: nn.Conv2d | nn.Conv3d, x: Tensor) -> bool:
    """Whether PyTorch would copy windows of this map and multiply them as matrices: in a plain convolution on a CPU,
    not mapped over clients."""
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and {*layer.dilation} == {1}
    here = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.backends.mkldnn.enabled
    return plain and here and torch._C._functorch.maybe_current_level() is None


def _bordered(layer: nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    assert not isinstance(layer.padding, str)
    return F.pad(x, [zeros for zeros in reversed(layer.padding) for _ in range(2)])
