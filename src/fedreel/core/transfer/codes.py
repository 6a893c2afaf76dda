"""Forms in which many numbers take few bytes: bf16, int8 with a scale for each block, the largest ones only."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedreel.config import TransferConfig
from fedreel.core.weights import Layout, TensorInfo, Weights

BLOCK = 256  # numbers that share a scale
SCALE, INDEX, VALUE = "transfer/scale", "transfer/index", "transfer/value"
_MOST = torch.finfo(torch.bfloat16).max


def make_code(config: TransferConfig | None) -> Code | None:
    """The form in which changes travel up; None: as they are."""
    if config is None or config.up == "full":
        return None
    return TopK(config.keep) if config.up == "top-k" else Int8() if config.up == "int8" else Bf16()


class Damaged(ValueError):
    """What came is not what a code makes: a reason, as admission counts it, and what exactly is wrong."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class Code(ABC):
    """A form for the numbers of some tensors, taken as one vector of float32. What it loses is the caller's to know:
    `read` after `write` gives what the other side will have, to the bit."""

    @abstractmethod
    def layout(self, of: Layout) -> Sequence[TensorInfo]:
        """The tensors that travel for those of this layout."""

    @abstractmethod
    def write(self, numbers: Tensor, of: Layout, coded: Weights) -> None:
        """Fill the tensors that travel. All numbers are finite."""

    @abstractmethod
    def read(self, coded: Weights, of: Layout) -> Tensor:
        """The numbers that these tensors stand for; raises Damaged for what `write` does not make."""


@dataclass(frozen=True)
class Bf16(Code):
    """The first 16 of a float32's 32 bits, rounded to the nearest: a relative error of 2^-9 at most. Half the bytes."""

    def layout(self, of: Layout) -> Sequence[TensorInfo]:
        return [replace(t, dtype=torch.bfloat16) for t in of.tensors]

    def write(self, numbers: Tensor, of: Layout, coded: Weights) -> None:
        split(numbers.clamp(-_MOST, _MOST), of, coded)

    def read(self, coded: Weights, of: Layout) -> Tensor:
        return _finite(join(coded, of), "a change")


@dataclass(frozen=True)
class Int8(Code):
    """Whole numbers from -127 to 127, rounded to the nearest, and a scale for each 256 of them: the largest of these
    over 127. The error is half a scale at most. A quarter of the bytes, and 1/64 of that for the scales."""

    def layout(self, of: Layout) -> Sequence[TensorInfo]:
        scale = TensorInfo(SCALE, (math.ceil(count(of) / BLOCK),), torch.float32, "buffer")
        return [*(replace(t, dtype=torch.int8) for t in of.tensors), scale]

    def write(self, numbers: Tensor, of: Layout, coded: Weights) -> None:
        blocks = _blocks(numbers)
        scale = blocks.abs().amax(1, keepdim=True) / 127
        steps = (blocks / scale.where(scale > 0, 1)).round().clamp(-127, 127)
        split(steps.view(-1)[: len(numbers)], of, coded)
        coded[SCALE].copy_(scale[:, 0])

    def read(self, coded: Weights, of: Layout) -> Tensor:
        scale = _finite(coded[SCALE], "the scales")
        if bool((scale < 0).any()):
            raise Damaged("range", "a scale is below 0")
        steps = join(coded, of)
        return _finite((_blocks(steps) * scale[:, None]).view(-1)[: len(steps)], "a change")


@dataclass(frozen=True)
class TopK(Code):
    """The share `keep` of the numbers that are farthest from 0, with their places; of equal ones the first."""

    keep: float

    def layout(self, of: Layout) -> Sequence[TensorInfo]:
        n = count(of)
        kept = (math.ceil(self.keep * n),)
        places = torch.int32 if n < 2**31 else torch.int64
        return [TensorInfo(INDEX, kept, places, "buffer"), TensorInfo(VALUE, kept, torch.float32, "buffer")]

    def write(self, numbers: Tensor, of: Layout, coded: Weights) -> None:
        index = largest(numbers, len(coded[INDEX]))
        coded[INDEX].copy_(index)
        coded[VALUE].copy_(numbers[index])

    def read(self, coded: Weights, of: Layout) -> Tensor:
        index, n = coded[INDEX].long(), count(of)
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= n):
            raise Damaged("range", f"places from {int(index.min())} to {int(index.max())}, and there are {n} numbers")
        if bool((index[1:] <= index[:-1]).any()):
            raise Damaged("range", "places do not ascend, or one comes twice")
        numbers = torch.zeros(n, device=index.device)
        numbers[index] = _finite(coded[VALUE], "a change")
        return numbers


def largest(numbers: Tensor, k: int) -> Tensor:
    """Where the k numbers lie that are farthest from 0, ascending; of equal ones the first count."""
    if k >= len(numbers):
        return torch.arange(len(numbers), device=numbers.device)
    size = numbers.abs()
    least = size.kthvalue(len(numbers) - k + 1).values
    above = (size > least).nonzero()[:, 0]
    equal = (size == least).nonzero()[: k - len(above), 0]
    return torch.cat([above, equal]).sort().values


def count(layout: Layout) -> int:
    return sum(t.size for t in layout.tensors)


def join(weights: Weights, layout: Layout) -> Tensor:
    """The numbers of the tensors of this layout, one after another."""
    device = next(iter(weights.flat.values())).device if weights.flat else "cpu"
    return torch.cat([torch.empty(0, device=device), *(weights[t.name].reshape(-1).float() for t in layout.tensors)])


def split(numbers: Tensor, layout: Layout, into: Weights) -> None:
    """Numbers one after another into the tensors of this layout."""
    parts = numbers.split([t.size for t in layout.tensors]) if layout.tensors else ()
    for t, part in zip(layout.tensors, parts):
        into[t.name].copy_(part.view(t.shape))


def _blocks(numbers: Tensor) -> Tensor:
    return torch.nn.functional.pad(numbers, (0, -len(numbers) % BLOCK)).view(-1, BLOCK)


def _finite(numbers: Tensor, what: str) -> Tensor:
    if not bool(numbers.isfinite().all()):
        raise Damaged("not-finite", f"NaN or infinity in {what}")
    return numbers
