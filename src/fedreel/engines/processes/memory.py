"""Memory that several processes see. It is gone when nobody has it open or looks at it any more."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_ALIGN = 64  # bytes; CPU kernels are fastest there, and compute the same as on memory of torch's own
_BY_NUMBER = "/proc/self/fd"  # where a process finds its open files by number, if it does
_MOST_REUSED, _MOST_FREE = 8, 2  # regions of one writer that are written again, and those that wait for it
ONCE = 0


class Region:
    """Tensors written one after another into a file that has no name: after `kill -9` nothing of it is left."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.handle = os.memfd_create("fedreel") if hasattr(os, "memfd_create") else _unnamed_file()
        self.size = space(tensors)
        self._content: Tensor | None = None
        try:
            for content, start in zip(map(_bytes, tensors), offsets(tensors)):
                _write_all(self.handle, content.numpy().data, start)
            os.ftruncate(self.handle, self.size)
        except BaseException:
            self.close()
            raise

    def write_again(self, tensors: Sequence[Tensor]) -> None:
        """Over what was there, where it can be mapped; these take no more space than the first."""
        if self._content is None:
            self._content = _mapped(self.handle, shared=True)
        for content, start in zip(map(_bytes, tensors), offsets(tensors)):
            self._content[start : start + len(content)] = content

    def close(self) -> None:
        """Whoever has it open or mapped keeps it."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def offsets(tensors: Iterable[Tensor]) -> list[int]:
    """Where each of these tensors begins in a region, and where the last ends."""
    ends = [0]
    for tensor in tensors:
        ends.append(ends[-1] + -(-tensor.nbytes // _ALIGN) * _ALIGN)
    return ends


def space(tensors: Iterable[Tensor]) -> int:
    """The bytes that these tensors take in a region."""
    return offsets(tensors)[-1]


class Reused:
    """The writer's regions. One that the reader has let go is written again: making memory and taking it away costs
    more than the copy. Number `ONCE` is for a region that is not: too many are out already, or it cannot be mapped."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}
        self._free: list[int] = []
        self._made = 0
        self._closed: list[int] = []

    def write(self, tensors: Sequence[Tensor]) -> tuple[int, Region, bool]:
        """A region with these tensors, its number, and whether the reader does not know it yet."""
        fitting = [number for number in self._free if self._regions[number].size >= space(tensors)]
        if fitting:
            number = min(fitting, key=lambda number: self._regions[number].size)
            self._free.remove(number)
            self._regions[number].write_again(tensors)
            return number, self._regions[number], False
        region = Region(tensors)
        if len(self._regions) >= _MOST_REUSED or not region.size or not os.path.isdir(_BY_NUMBER):
            return ONCE, region, True
        self._made += 1
        self._regions[self._made] = region
        return self._made, region, True

    def let_go(self, numbers: Iterable[int]) -> None:
        """The reader looks at these no more. Few are kept: a round that needs many at once does not make a habit."""
        self._free += numbers
        for number in self._free[:-_MOST_FREE]:
            self._regions.pop(number).close()
            self._closed.append(number)
        self._free = self._free[-_MOST_FREE:]

    def taken_closed(self) -> list[int]:
        """The numbers of regions that have gone since this was last asked: the reader can forget them."""
        closed, self._closed = self._closed, []
        return closed

    def close(self) -> None:
        for region in self._regions.values():
            region.close()


class Views:
    """The reader's side of `Reused`: each region is mapped once, and its writer is to be told when nothing of what was
    in it is looked at any more."""

    def __init__(self) -> None:
        self._content: dict[int, Tensor] = {}
        self._let_go: list[int] = []

    def look(self, number: int, handle: int | None) -> Tensor:
        """What was just written to a region; `handle` where it is new."""
        if handle is not None and number == ONCE:
            return look_into(handle)
        if handle is not None:
            self._content[number] = _mapped(handle, shared=True)
        seen = self._content[number].numpy()[:]  # as long as a tensor is left of this, it is looked at
        weakref.finalize(seen, self._let_go.append, number).atexit = False
        return torch.from_numpy(seen)

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self._content[number]

    def taken_let_go(self) -> list[int]:
        """The numbers of regions that nobody has looked at since this was last asked."""
        ended = self._let_go[:]
        del self._let_go[: len(ended)]  # others may end meanwhile, in any thread
        return ended


def look_into(handle: int) -> Tensor:
    """All bytes of a region. What is written to them is seen by nobody else; they stay as long as a tensor is left of
    them, and take no open file."""
    size = os.fstat(handle).st_size
    if os.path.isdir(_BY_NUMBER) and size:
        return _mapped(handle, shared=False)
    content = torch.empty(size, dtype=torch.uint8)
    into, done = content.numpy().data, 0
    while done < size:
        done += os.preadv(handle, [into[done:]], done)
    return content


def _mapped(handle: int, shared: bool) -> Tensor:
    size = os.fstat(handle).st_size
    return torch.from_file(f"{_BY_NUMBER}/{handle}", shared=shared, size=size, dtype=torch.uint8)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def _write_all(handle: int, content: memoryview, at: int) -> None:
    while content.nbytes:
        written = os.pwrite(handle, content, at)
        content, at = content[written:], at + written


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
