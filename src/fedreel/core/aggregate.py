"""Ways to make one model of many. Means stream, with one accumulator; robust rules need all updates at once."""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedreel.core.weights import Layout, Weights


class Aggregator(Protocol):
    """Takes updates one by one; `value` is the aggregate. `needs_all` warns that memory grows with the cohort."""

    needs_all: ClassVar[bool]

    def add(self, weights: Weights, weight: float = 1.0) -> None: ...

    @property
    def value(self) -> Weights: ...


class Mean:
    """Weighted mean as a running mean: m += (w / W)(x - m). Equal models are an exact fixed point of it. Half
    precision accumulates in float32; integer tensors are averaged in float64 and rounded."""

    needs_all: ClassVar[bool] = False

    def __init__(self) -> None:
        self._sum: dict[torch.dtype, Tensor] = {}
        self._layout: Layout | None = None
        self._log_total = -math.inf
        self._taken = False

    @property
    def total(self) -> float:
        """Sum of the weights so far."""
        return math.exp(self._log_total)

    def add(self, weights: Weights, weight: float = 1.0) -> None:
        """Weights need not sum to one; zero counts for nothing."""
        if not weight >= 0 or math.isinf(weight):
            raise ValueError(f"an aggregation weight must be finite and not negative, found {weight}")
        self.add_log(weights, math.log(weight) if weight > 0 else -math.inf)

    def add_log(self, weights: Weights, log_weight: float) -> None:
        """Add with weight exp(log_weight). With log_weight = -loss this is a softmax of -loss, safe for any loss."""
        if self._taken:
            raise RuntimeError("this mean was already taken; start a new one")
        if log_weight == -math.inf:
            return
        first = self._log_total == -math.inf
        self._log_total = log_weight if first else _log_add(self._log_total, log_weight)
        share = math.exp(log_weight - self._log_total)
        for dtype, flat in weights.flat.items():
            wide = _wide(dtype)
            if first:
                self._sum[dtype] = flat.to(wide, copy=True)
            else:
                self._sum[dtype].lerp_(flat if wide == dtype else flat.to(wide), share)
        self._layout = weights.layout

    @property
    def value(self) -> Weights:
        if self._layout is None:
            raise ValueError("the mean of no updates is undefined: nothing with a weight above zero was added")
        self._taken = True
        return Weights(self._layout, {d: _narrow(s, d) for d, s in self._sum.items()})


class _Collected:
    """Base of the rules that must see all updates before they can decide."""

    needs_all: ClassVar[bool] = True

    def __init__(self) -> None:
        self.updates: list[Weights] = []

    def add(self, weights: Weights, weight: float = 1.0) -> None:
        """These rules count clients as equals: `weight` only excludes an update when it is zero."""
        if weight > 0:
            self.updates.append(weights)

    def _stacked(self) -> dict[torch.dtype, Tensor]:
        if not self.updates:
            raise ValueError("a robust aggregate of no updates is undefined")
        return {d: torch.stack([u.flat[d].to(_wide(d)) for u in self.updates]) for d in self.updates[0].flat}

    def _pack(self, flat: dict[torch.dtype, Tensor]) -> Weights:
        return Weights(self.updates[0].layout, {d: _narrow(f, d) for d, f in flat.items()})


class Median(_Collected):
    """Coordinate-wise median (mean of the two middle values for an even number)."""

    @property
    def value(self) -> Weights:
        return self._pack({d: _middle_mean(s, (len(s) - 1) // 2) for d, s in self._stacked().items()})


class TrimmedMean(_Collected):
    """Coordinate-wise mean without the lowest and the highest `trim` share of the values."""

    def __init__(self, trim: float = 0.2) -> None:
        super().__init__()
        if not 0 <= trim < 0.5:
            raise ValueError(f"trim must be at least 0 and below 0.5, found {trim}")
        self.trim = trim

    @property
    def value(self) -> Weights:
        return self._pack({d: _middle_mean(s, int(self.trim * len(s))) for d, s in self._stacked().items()})


class Krum(_Collected):
    """The update closest to its n - byzantine - 2 nearest others (Blanchard et al. 2017); mean of the `keep` best."""

    def __init__(self, byzantine: int = 1, keep: int = 1) -> None:
        super().__init__()
        self.byzantine, self.keep = byzantine, keep

    def chosen(self) -> list[int]:
        """Indices of the kept updates, best first."""
        n = len(self.updates)
        if n < self.byzantine + 3:
            raise ValueError(f"krum against {self.byzantine} bad clients needs {self.byzantine + 3} updates, found {n}")
        points = torch.cat([s for d, s in self._stacked().items() if d.is_floating_point], dim=1).double()
        square = torch.cdist(points, points).square_()
        nearest = square.sort(dim=1).values[:, 1 : n - self.byzantine - 1]
        return nearest.sum(dim=1).argsort(stable=True)[: self.keep].tolist()

    @property
    def value(self) -> Weights:
        mean = Mean()
        for i in self.chosen():
            mean.add(self.updates[i])
        return mean.value


def _log_add(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high))


def _wide(dtype: torch.dtype) -> torch.dtype:
    if not dtype.is_floating_point:
        return torch.float64
    return torch.float32 if dtype.itemsize < 4 else dtype


def _narrow(values: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bool:
        return values > 0.5
    return values.to(dtype) if dtype.is_floating_point else values.round().to(dtype)


def _middle_mean(stack: Tensor, cut: int) -> Tensor:
    return stack.sort(dim=0).values[cut : len(stack) - cut].mean(dim=0)
