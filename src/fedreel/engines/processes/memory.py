"""Memory that several processes see: written once, and gone when nobody has it open or looks at it any more."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence

import torch
from torch import Tensor

_ALIGN = 64  # bytes; CPU kernels are fastest there, and compute the same as on memory of torch's own
_BY_NUMBER = "/proc/self/fd"  # where a process finds its open files by number, if it does


class Region:
    """Tensors written one after another into a file that has no name: after `kill -9` nothing of it is left."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.handle = os.memfd_create("fedreel") if hasattr(os, "memfd_create") else _unnamed_file()
        self.offsets: list[int] = []
        try:
            end = 0
            for tensor in tensors:
                self.offsets.append(end)
                flat = tensor.detach().cpu().contiguous().view(-1)
                _write_all(self.handle, flat.view(torch.uint8).numpy().data, end)
                end += -(-flat.nbytes // _ALIGN) * _ALIGN
            os.ftruncate(self.handle, end)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Whoever has it open or mapped keeps it."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def look_into(handle: int) -> Tensor:
    """All bytes of a region. What is written to them is seen by nobody else; they stay as long as a tensor is left of
    them, and take no open file."""
    size = os.fstat(handle).st_size
    if os.path.isdir(_BY_NUMBER) and size:
        return torch.from_file(f"{_BY_NUMBER}/{handle}", shared=False, size=size, dtype=torch.uint8)
    content = torch.empty(size, dtype=torch.uint8)
    into, done = content.numpy().data, 0
    while done < size:
        done += os.preadv(handle, [into[done:]], done)
    return content


def _write_all(handle: int, content: memoryview, at: int) -> None:
    while content.nbytes:
        written = os.pwrite(handle, content, at)
        content, at = content[written:], at + written


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
