"""ST-GCN's convolutions of maps (V, C, N, T) whose memory goes by joint, sequence, frame, channel. In that order both
are plain matrix products, over joints and over time, which neither copy nor turn what they read; on GPUs they are
kernels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.kernels.fusing import is_fusing
from fedreel.kernels.norm import works

DEVICES = ("cuda",)  # with kernels
JOINTS = 32  # most that they take
ROOM = 90 * 1024  # bytes that a block of theirs may need; cards since 2020 have more
COPIES = 24  # channels out whose products take as long as laying the frames that a place sees side by side


def pays(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether `over_time` beats a product over the frames that a place sees, laid side by side: on CPUs it multiplies
    all frames with all, by zero where they are too far apart, but copies nothing."""
    if x.device.type in DEVICES:
        plain = x.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type) and not is_fusing()
        return plain and x.shape[3] <= JOINTS and has_room(x.device) and works(x.device)
    if x.is_cuda or conv.dilation[0] != 1:
        return False
    return x.shape[2] / conv.kernel_size[0] <= 1 + COPIES / conv.out_channels


@lru_cache
def has_room(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0) >= ROOM


def joints_first(x: Tensor) -> Tensor:
    """(V, C, N, T) of maps (N, C, T, V)."""
    return x.permute(3, 0, 2, 1).contiguous().permute(0, 3, 1, 2)


def joints_last(h: Tensor) -> Tensor:
    """(N, C, T, V) again; memory stays as it is."""
    return h.permute(2, 1, 3, 0)


def over_joints(conv: nn.Conv2d, h: Tensor, matrices: Tensor) -> Tensor:
    """A 1 x 1 convolution to K maps, moved along the matrices (K, V, W) and added up: (W, D, N, T)."""
    v, c, n, t = h.shape
    k, _, w = matrices.shape
    weight, bias = conv.weight.view(k, -1, c).transpose(1, 2), _bias(conv).view(k, 1, -1)
    if h.device.type in DEVICES:
        from fedreel.kernels.joints_triton import Spread  # optional, and slow to import

        beside = matrices.sum(1).transpose(0, 1) @ bias.squeeze(1)
        rows = h.permute(0, 2, 3, 1).reshape(v, n * t, c)
        moved = Spread.apply(rows, matrices, weight, beside)[0]
        return moved.view(w, n, t, -1).permute(0, 3, 1, 2)
    maps = torch.baddbmm(bias, h.permute(0, 2, 3, 1).reshape(1, -1, c).expand(k, -1, -1), weight)
    moved = matrices.permute(2, 0, 1).reshape(w, k * v) @ maps.view(k * v, -1)
    return moved.view(w, n, t, -1).permute(0, 3, 1, 2)


def over_time(conv: nn.Conv2d, h: Tensor) -> Tensor:
    """A convolution over time as a product of all frames with all: (V, D, N, frames out)."""
    v, c, n, t = h.shape
    d, kernel = conv.out_channels, conv.kernel_size[0]
    if h.device.type in DEVICES:
        from fedreel.kernels.time_triton import Convolved  # optional, and slow to import

        frames = h.permute(0, 2, 3, 1).reshape(v * n, t, c)
        how = conv.stride[0], int(conv.padding[0]), conv.dilation[0]
        found = Convolved.apply(frames, conv.weight.squeeze(3), _bias(conv), how)[0]
        return found.view(v, n, -1, d).permute(0, 3, 1, 2)
    taps, out = _taps(t, kernel, conv.stride[0], int(conv.padding[0]))
    seen = torch.from_numpy(taps).to(conv.weight)
    matrix = (conv.weight.view(d * c, kernel) @ seen).view(d, c, t, out).permute(3, 0, 2, 1).reshape(out * d, t * c)
    bias = _bias(conv).expand(out, d).reshape(-1)
    moved = F.linear(h.permute(0, 2, 3, 1).reshape(v * n, t * c), matrix, bias)
    return moved.view(v, n, out, d).permute(0, 3, 1, 2)


def pointwise(conv: nn.Conv2d, h: Tensor) -> Tensor:
    """A 1 x 1 convolution with a stride in time."""
    if h.device.type in DEVICES:
        return over_time(conv, h)
    taken = h[..., :: conv.stride[0]].permute(0, 2, 3, 1)
    return F.linear(taken, conv.weight.flatten(1), conv.bias).permute(0, 3, 1, 2)


@lru_cache(maxsize=64)
def _taps(frames: int, kernel: int, stride: int, padding: int) -> tuple[np.ndarray, int]:
    """(kernel, frames * out): 1 where a frame is what the kernel's tap sees for a frame of the result, of which there
    are `out`."""
    out = (frames + 2 * padding - kernel) // stride + 1
    tap = np.arange(frames)[:, None] - stride * np.arange(out) + padding
    return (tap.ravel() == np.arange(kernel)[:, None]).astype(np.float32), out


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias
