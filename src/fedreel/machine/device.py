"""Which device a run uses, and how PyTorch is set up on it."""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedreel.errors import RunError


def pick_device(name: str) -> torch.device:
    """The device of that name, tried out; `auto` takes a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RunError(
            f"the device '{name}' cannot be used",
            found=str(error).splitlines()[0],
            hint="--device auto takes a GPU if there is one",
        ) from error
    _set_up(device)
    return device


def _set_up(device: torch.device) -> None:
    """On 64-bit ARM, oneDNN trains small networks slower than PyTorch's own kernels (bench/backend.py prints by how
    much), so it is switched off there. On a GPU, matrix products may use TF32."""
    if device.type == "cpu" and platform.machine() in ("aarch64", "arm64"):
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True


def give_back() -> None:
    """What PyTorch holds of a GPU's memory without using it goes back, for other processes."""
    gc.collect()  # recordings of steps hold each other
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device, without waiting until that has done what it was given before."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def channels_together(x: Tensor) -> Tensor:
    """Images or clips whose channels lie together in memory, as most kernels want them. Under vmap, which knows no such
    layout, they are only made contiguous."""
    if under_vmap():
        return x.contiguous()
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def under_vmap() -> bool:
    """Whether tensors stand for those of several clients or examples (torch.func), which not every operation knows."""
    return torch._C._functorch.maybe_current_level() is not None


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this, a GPU multiplies float32 as float32."""
    kinds: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [kind.allow_tf32 for kind in kinds]
    for kind in kinds:
        kind.allow_tf32 = False
    try:
        yield
    finally:
        for kind, allowed in zip(kinds, before):
            kind.allow_tf32 = allowed


def pin(memory: np.ndarray) -> bool:
    """Keep this memory where a GPU can copy from it by itself; False if that cannot be had, and copies are made at
    once. `unpin` it before it is given back."""
    there = torch.from_numpy(memory)
    return int(torch.cuda.cudart().cudaHostRegister(there.data_ptr(), there.nbytes, 0)) == 0


def unpin(memory: np.ndarray) -> None:
    torch.cuda.cudart().cudaHostUnregister(torch.from_numpy(memory).data_ptr())


def random_kept(device: torch.device) -> AbstractContextManager[None]:
    """After this, torch's random numbers go on as if nothing had been drawn within."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Within this, torch's random numbers are those of the seed; afterwards they go on as if nothing had been drawn."""
    with random_kept(device):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
