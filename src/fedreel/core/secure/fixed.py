"""Fixed point: a client's weighted change as integers whose sum cannot overflow, and the mean that the sum is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedreel.core.aggregate import Average, narrowed
from fedreel.core.secure.masks import Vector
from fedreel.core.weights import Layout, Weights
from fedreel.errors import Diverged, RecipeError, RunError

RANGES: Mapping[str, float] = {  # of numbers, by kind
    "count": 1e7,
    "label-statistics": 1e7,
    "loss": 1e4,
    "metric": 1e6,
    "derived-number": 1e6,
}
COUNTERS = 2.0**16  # by how much a counter of the model changes in a round, at most
STATISTICS = 64.0  # times the clip: running means and variances are no steps of an optimizer
_EXACT = 52  # bits of an integer that a float64 holds, one less
_LEAST = 12  # bits that must be left of a number
_CHUNK = 1 << 20  # numbers that are worked on at once
_CLIPPED, _CAPPED, _FIRST = 0, 1, 2  # places in the head: numbers that were clipped, clients whose weight was capped


@dataclass(frozen=True)
class Grid:
    """Numbers from -1 to 1 as integers from -levels to levels, cut toward zero. So many parties' do not overflow."""

    bits: int
    parties: int

    def __post_init__(self) -> None:
        if self._room < _LEAST:
            raise RecipeError(
                f"the parts of {self.parties} clients do not fit into {self.bits} bits",
                where="[secure] bits",
                expected="64" if self.bits == 32 else "fewer clients a round",
            )
        assert self.parties * self.levels < 2 ** (self.bits - 1)

    @property
    def _room(self) -> int:
        return min(_EXACT, self.bits - 1 - self.parties.bit_length())

    @property
    def levels(self) -> int:
        return 2**self._room


@dataclass(frozen=True)
class Form:
    """What is in the vector of a sum: for each way to weigh models, the weight, and weighed by it every number, the
    model's change and each group of tensors beside it. A weight is a share of `cap`."""

    layout: Layout
    numbers: Mapping[str, str]  # name -> kind
    beside: tuple[str, ...]
    by: tuple[str, ...]
    parties: int
    clip: float
    bits: int
    cap: float

    @cached_property
    def fine(self) -> Grid:
        """Of the head."""
        return Grid(64, self.parties)

    @cached_property
    def grid(self) -> Grid:
        """Of the body."""
        return Grid(self.bits, self.parties)

    @property
    def head(self) -> int:
        return _FIRST + len(self.by) * (1 + len(self.numbers))

    @property
    def body(self) -> int:
        return len(self.by) * self._whole

    @property
    def _whole(self) -> int:
        """Numbers of the body for one way to weigh models."""
        return sum(part.end - part.start for part in self._parts)

    @property
    def step(self) -> float:
        """By how much, at most, a client's part of the weighted sum differs from what it was before the grid."""
        counted = any(by not in ("equal", "loss") for by in self.by)  # else a weight is no share of the cap
        return self.clip * (self.cap if counted else 1.0) / self.grid.levels

    @cached_property
    def _parts(self) -> list[_Part]:
        """What follows each other: the model, and each group of tensors beside it."""
        beside = [part for name in self.beside for part in _parts(name, self.layout.trained, self.clip)]
        return [*_parts("", self.layout, self.clip), *beside]

    def encode(
        self, sent: Weights, trained: Weights, beside: Mapping[str, Weights], numbers: Mapping[str, float]
    ) -> Vector:
        """A client's part of the sum."""
        vector = Vector.zeros(self.head, self.body, self.bits)
        shares = [self._share(by, numbers) for by in self.by]
        capped = any(by not in ("equal", "loss") and numbers[by] > self.cap for by in self.by)
        head: list[float] = []
        for share in shares:
            told = [_within(numbers[name] / RANGES[kind], name) for name, kind in self.numbers.items()]
            head += [share, *(share * value for value in told)]
        clipped, at = 0, 0
        for part in self._parts:
            for change in _changes(part, beside[part.name] if part.name else trained, None if part.name else sent):
                clipped += int((change.abs() > part.reach).sum())
                change = change.div_(part.reach).clamp_(-1.0, 1.0)
                for number, share in enumerate(shares):
                    integers = (change * (share * self.grid.levels)).trunc_().to(torch.int64).numpy()
                    place = number * self._whole + at
                    vector.body[place : place + len(integers)] = integers.astype(vector.body.dtype)
                at += len(change)
        fine = [int(value * self.fine.levels) for value in head]
        vector.head[:] = np.array([min(clipped, 2**40), capped, *fine], np.int64).view(np.uint64)
        return vector

    def decode(self, total: Vector, sent: Weights, count: int) -> list[SumAverage]:
        """The means of a sum of `count` clients' parts, one for each way to weigh them."""
        head, body = total.head.view(np.int64), total.body.view(np.int32 if self.bits == 32 else np.int64)
        width, whole = 1 + len(self.numbers), self._whole
        made = []
        for number, by in enumerate(self.by):
            weight, *values = head[_FIRST + number * width : _FIRST + (number + 1) * width].tolist()
            if not 0 < weight <= count * self.fine.levels or not 0 <= head[_CAPPED] <= count:
                raise RunError(
                    "what came out is not the sum of the clients' parts",
                    expected=f"weights of {count} clients that are not all zero",
                    hint="a client has sent something else than its part; the last checkpoint stands: --resume",
                )
            told = {n: RANGES[kind] * v / weight for (n, kind), v in zip(self.numbers.items(), values)}
            means = self._means(body[number * whole : (number + 1) * whole], weight / self.fine.levels, sent)
            made.append(SumAverage(by, count, told, means.pop(""), means))
        return made

    def remarks(self, total: Vector) -> tuple[int, int]:
        """How many numbers were clipped, of all clients together, and how many clients' weights were capped."""
        head = total.head.view(np.int64)
        return int(head[_CLIPPED]), int(head[_CAPPED])

    def _means(self, body: np.ndarray, shares: float, sent: Weights) -> dict[str, Weights]:
        made = {"": Weights.zeros(self.layout), **{name: Weights.zeros(self.layout.trained) for name in self.beside}}
        at = 0
        for part in self._parts:
            flat = made[part.name].flat[part.dtype]
            for start in range(part.start, part.end, _CHUNK):
                end = min(start + _CHUNK, part.end)
                mean = torch.from_numpy(body[at : at + end - start].astype(np.float64))
                mean *= part.reach / self.grid.levels / shares
                if not part.name:
                    mean += sent.flat[part.dtype][start:end].cpu().double()
                flat[start:end] = narrowed(mean, part.dtype)
                at += end - start
        return made

    def _share(self, by: str, numbers: Mapping[str, float]) -> float:
        """A client's weight, from 0 to 1."""
        if by == "equal":
            return 1.0
        if by == "loss":  # a loss below 0 counts as one of 0: without the others' there is no largest to compare with
            return math.exp(-max(numbers["loss"], 0.0))
        return min(max(numbers[by], 0.0), self.cap) / self.cap


class SumAverage(Average):
    """What `fed.average` gives where only the sum is known: nobody's own numbers are."""

    def __init__(
        self, by: str, count: int, means: Mapping[str, float], weights: Weights, beside: Mapping[str, Weights]
    ) -> None:
        self.by, self.means, self.numbers = by, means, {}
        self._count, self._weights, self._beside = count, weights, beside

    @property
    def weights(self) -> Weights:
        return self._weights

    @property
    def count(self) -> int:
        return self._count

    def tensors(self, name: str) -> Weights:
        return self._beside[name]

    def number(self, name: str) -> float:
        return self.means[name]


@dataclass(frozen=True)
class _Part:
    """A piece of a buffer whose numbers change by no more than `reach`."""

    name: str  # of the tensors beside the model, or nothing
    dtype: torch.dtype
    start: int
    end: int
    reach: float


def _parts(name: str, layout: Layout, clip: float) -> list[_Part]:
    """The pieces of a layout, as long as they can be."""
    made: list[_Part] = []
    for dtype, size in layout.sizes.items():
        places = [(start, tensor) for tensor, start in layout.place.values() if tensor.dtype == dtype]
        for (start, tensor), end in zip(places, [*(start for start, _ in places[1:]), size]):
            still = tensor.role in ("statistics", "buffer")
            reach = COUNTERS if not dtype.is_floating_point else STATISTICS * clip if still else clip
            last = made[-1] if made else None
            if last is not None and (last.dtype, last.end, last.reach) == (dtype, start, reach):
                made[-1] = replace(last, end=end)
            else:
                made.append(_Part(name, dtype, start, end, reach))
    return made


def _changes(part: _Part, after: Weights, before: Weights | None) -> Iterator[Tensor]:
    """The change of a piece in float64, a chunk at a time."""
    for start in range(part.start, part.end, _CHUNK):
        chunk = slice(start, min(start + _CHUNK, part.end))
        change = after.flat[part.dtype][chunk].cpu().to(torch.float64, copy=True)
        if before is not None:
            change -= before.flat[part.dtype][chunk].cpu().double()
        if not bool(change.isfinite().all()):
            raise Diverged("training ended in NaN or infinity", hint="a lower train.lr, or train.clip_norm")
        yield change


def _within(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise Diverged(f"the number '{name}' is not finite")
    return max(-1.0, min(value, 1.0))
